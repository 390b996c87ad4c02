// The live dashboard.
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { Bar, compact, LineChart, pointOf, Roofline, Spark, type Point } from "./charts";
import { groupsOf, quantile, share, sum, type Moment, type Reading } from "./metrics";
import { usePage } from "./ui";

function Tile({
  label,
  figure,
  unit,
  note,
  children,
}: {
  label: string;
  figure: string;
  unit?: string;
  note?: string;
  children?: ComponentChildren;
}) {
  return (
    <section class="tile">
      <h2>{label}</h2>
      <p class="figure">
        {figure}
        {unit && <small> {unit}</small>}
      </p>
      {note && <p class="note">{note}</p>}
      {children}
    </section>
  );
}

const percent = (x: number | undefined) => (x === undefined ? "–" : `${(100 * x).toFixed(x < 0.0995 && x > 0 ? 1 : 0)} %`);
const duration = (s: number | undefined) =>
  s === undefined ? "–" : s < 0.9995 ? `${(1000 * s).toFixed(s < 0.00995 ? 1 : 0)} ms` : `${s.toFixed(2)} s`;
const whole = (x: number | undefined) => (x === undefined ? "–" : compact(Math.round(x)));

const reasons: Record<string, string> = {
  memory: "for memory",
  sequences: "for a free sequence",
  tokens: "for rows in a step",
  batch: "for their batch",
};

function Tiles({ moments, now, minuteAgo }: { moments: Moment[]; now: Reading; minuteAgo: Reading | undefined }) {
  const last = moments.at(-1);
  const waiting = last?.waiting.reduce((n, [, k]) => n + k, 0) ?? sum(now, "num_requests_waiting");
  const why = last?.waiting.map(([reason]) => reasons[reason] ?? `for ${reason}`).join(", ");
  const hits = share(now, minuteAgo, "prefix_cache_hits_total", "prefix_cache_queries_total");
  const drafts = "spec_decode_num_draft_tokens_total";
  return (
    <div class="tiles">
      <Tile label="Generated" figure={whole(last?.generated)} unit="tok/s">
        <Spark moments={moments} value={(m) => m.generated} />
      </Tile>
      <Tile label="Prompts" figure={whole(last?.prompt)} unit="tok/s">
        <Spark class="b" moments={moments} value={(m) => m.prompt} />
      </Tile>
      <Tile label="Running" figure={whole(sum(now, "num_requests_running"))}>
        <Spark moments={moments} value={(m) => m.running} />
      </Tile>
      <Tile label="Waiting" figure={whole(waiting)} note={waiting ? why : "the queue is empty"} />
      <Tile label="Prefix hits" figure={percent(hits)} note="of prompt tokens, last minute" />
      {now.has(drafts) && (
        <Tile
          label="Drafts accepted"
          figure={percent(share(now, minuteAgo, "spec_decode_num_accepted_tokens_total", drafts))}
          note="of drafted tokens, last minute"
        />
      )}
    </div>
  );
}

// Points of the last minute in steps of a second; the newest is the large one.
function Limits({ moments, now }: { moments: Moment[]; now: Reading }) {
  const bytes = sum(now, "memory_limit_bytes_per_second"),
    flops = sum(now, "compute_limit_flops_per_second");
  if (!bytes || !flops) return <p class="hint">This server does not know the limits of its machine.</p>;
  const last = moments.at(-1);
  const points = moments.map((m) => pointOf(m, last!.at)).filter((p): p is Point => p !== undefined && p.age <= 60);
  const part = (x: number | undefined, limit: number, unit: string) =>
    `${percent((x ?? 0) / limit)}  ·  ${compact(x ?? 0, unit)} of ${compact(limit, unit)}`;
  return (
    <>
      <div class="limits">
        <Bar label="Memory" share={(last?.bytes ?? 0) / bytes} text={part(last?.bytes, bytes, "B/s")} />
        <Bar class="b" label="Arithmetic" share={(last?.flops ?? 0) / flops} text={part(last?.flops, flops, "flop/s")} />
      </div>
      <Roofline roof={{ bytes, flops }} points={points} />
      <p class="hint">
        The bars count the whole last second, the point the time in which the engine computed. Limits were measured on this machine at the
        start.
      </p>
    </>
  );
}

function StateInUse({ now }: { now: Reading }) {
  const groups = groupsOf(now);
  const known = groups.some((g) => g.used !== undefined);
  const fullest = sum(now, "kv_cache_usage_ratio");
  return (
    <>
      {known &&
        groups.map((g, i) => (
          <Bar
            key={i}
            label={`${groups.length > 1 ? `Group ${i + 1}: ` : ""}${g.name}`}
            share={(g.used ?? 0) / g.units}
            more={g.cached / g.units}
            text={`${compact(g.used ?? 0)} of ${compact(g.units)}${g.cached ? `, ${compact(g.cached)} cached` : ""}`}
          />
        ))}
      {!known && <Bar label={groups.length > 1 ? "Fullest group" : "Pages"} share={fullest} text={percent(fullest)} />}
      <dl class="facts">
        <div>
          <dt>Reserved, unused</dt>
          <dd>{percent(sum(now, "state_internal_waste_ratio"))}</dd>
        </div>
        <div>
          <dt>Preempted</dt>
          <dd>{whole(sum(now, "num_preemptions_total"))}</dd>
        </div>
        <div>
          <dt>Swapped units</dt>
          <dd>{whole(sum(now, "swapped_units_total"))}</dd>
        </div>
      </dl>
    </>
  );
}

function Latency({ now, minuteAgo }: { now: Reading; minuteAgo: Reading | undefined }) {
  const recent = quantile(now, minuteAgo, "e2e_request_latency_seconds", 0.5) !== undefined;
  const rows: [string, string][] = [
    ["First token", "time_to_first_token_seconds"],
    ["Between tokens", "time_per_output_token_seconds"],
    ["Waiting", "request_queue_time_seconds"],
    ["Whole answer", "e2e_request_latency_seconds"],
  ];
  const cell = (name: string, q: number) => duration(quantile(now, recent ? minuteAgo : undefined, name, q));
  return (
    <table class="latency">
      <caption>{recent ? "Answers of the last minute" : "Answers since the start"}</caption>
      <thead>
        <tr>
          <td />
          <th scope="col">median</th>
          <th scope="col">95 %</th>
        </tr>
      </thead>
      <tbody>
        {rows.map(([label, name]) => (
          <tr key={name}>
            <th scope="row">{label}</th>
            <td>{cell(name, 0.5)}</td>
            <td>{cell(name, 0.95)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Answers({ now }: { now: Reading }) {
  const by = (name: string, key: string) => Object.fromEntries((now.get(name) ?? []).map((s) => [s.labels[key], s.value]));
  const ended = by("request_success_total", "finished_reason"),
    responses = by("http_responses_total", "status");
  const facts: [string, number | undefined][] = [
    ["Complete", ended.stop],
    ["Stopped at the length limit", ended.length],
    ["Client left", ended.abort],
    ["Failed", ended.error],
    ["Refused: queue full", sum(now, "requests_refused_total")],
    ["Client errors (4xx)", responses["4xx"]],
    ["Server errors (5xx)", responses["5xx"]],
  ];
  return (
    <dl class="facts">
      {facts.map(([label, n]) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>{whole(n)}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Dashboard() {
  const { watcher } = usePage();
  const { moments, now, minuteAgo, failure } = watcher;
  useEffect(() => watcher.start(), [watcher]);
  const last = moments.at(-1);
  return (
    <main class="dashboard" id="main" tabIndex={0}>
      <h1 class="hidden">Dashboard</h1>
      {failure && (
        <p class="failure" role="alert">
          {failure}
        </p>
      )}
      {now && (
        <>
          <Tiles moments={moments} now={now} minuteAgo={minuteAgo} />
          <section class="panel wide">
            <h2>
              How close to the limits{" "}
              <span class={last?.busy && last.busy > 0.02 ? "pulse on" : "pulse"}>
                {last?.busy && last.busy > 0.02 ? "computing" : "idle"}
              </span>
            </h2>
            <Limits moments={moments} now={now} />
          </section>
          <section class="panel wide">
            <h2>Tokens per second</h2>
            {last && (
              <LineChart
                moments={moments}
                unit="Tokens per second"
                height={352}
                series={[
                  { label: "generated", class: "a", value: (m) => m.generated },
                  { label: "prompts", class: "b", value: (m) => m.prompt },
                ]}
              />
            )}
          </section>
          <section class="panel">
            <h2>State in use</h2>
            <StateInUse now={now} />
          </section>
          <section class="panel">
            <h2>Latency</h2>
            <Latency now={now} minuteAgo={minuteAgo} />
          </section>
          <section class="panel">
            <h2>Answers</h2>
            <Answers now={now} />
          </section>
        </>
      )}
    </main>
  );
}
