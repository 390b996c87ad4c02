// Parses Prometheus' text format, and computes rates between two readings.

export interface Sample {
  labels: Record<string, string>;
  value: number;
}

export type Reading = Map<string, Sample[]>; // by name, without "millrace_"

const line = /^millrace_([a-zA-Z0-9_:]+)(?:\{(.*)\})? (\S+)/;
const label = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

export function parseMetrics(text: string): Reading {
  const out: Reading = new Map();
  for (const row of text.split("\n")) {
    const m = line.exec(row);
    if (!m) continue;
    const labels: Record<string, string> = {};
    for (const [, name, value] of (m[2] ?? "").matchAll(label))
      labels[name] = value.replace(/\\(.)/g, (_, c: string) => (c === "n" ? "\n" : c));
    const value = m[3] === "+Inf" ? Infinity : Number(m[3]);
    out.set(m[1], [...(out.get(m[1]) ?? []), { labels, value }]);
  }
  return out;
}

export const sum = (r: Reading, name: string) => r.get(name)?.reduce((n, s) => n + s.value, 0);

export interface Group {
  name: string;
  units: number;
  used: number | undefined; // by sequences; undefined: not reported by group
  cached: number; // by the prefix cache alone
}

// One second on the dashboard.
export interface Moment {
  at: number; // ms
  generated: number | undefined; // tokens a second
  prompt: number | undefined;
  running: number | undefined;
  waiting: [string, number][]; // by reason, above 0 only
  bytes: number | undefined; // a second
  flops: number | undefined;
  busy: number | undefined; // share of the second that the engine computed
}

function change(now: Reading, before: Reading, name: string): number | undefined {
  const a = sum(now, name),
    b = sum(before, name);
  return a === undefined || b === undefined || a < b ? undefined : a - b; // smaller than before: the server was restarted
}

export function momentOf(now: Reading, before: Reading, at: number, seconds: number): Moment {
  const rate = (name: string) => {
    const n = change(now, before, name);
    return n === undefined ? undefined : n / seconds;
  };
  const engine = (rate("engine_prefill_seconds_total") ?? NaN) + (rate("engine_decode_seconds_total") ?? NaN);
  return {
    at,
    generated: rate("generation_tokens_total"),
    prompt: rate("prompt_tokens_total"),
    running: sum(now, "num_requests_running"),
    waiting: (now.get("num_requests_waiting") ?? []).filter((s) => s.value > 0).map((s) => [s.labels.reason ?? "", s.value]),
    bytes: rate("engine_bytes_total"),
    flops: rate("engine_flops_total"),
    busy: Number.isNaN(engine) ? undefined : Math.min(1, engine),
  };
}

export function groupsOf(r: Reading): Group[] {
  const by = (name: string) => new Map((r.get(name) ?? []).map((s) => [s.labels.group, s.value]));
  const used = by("state_units_used"),
    cached = by("state_units_cached");
  return (r.get("state_units") ?? []).map(({ labels, value }) => {
    const windowed = labels.window && labels.window !== "0" ? `, window of ${labels.window}` : "";
    return {
      name: labels.kind === "slot" ? "recurrent slots" : `pages${windowed}`,
      units: value,
      used: used.get(labels.group),
      cached: cached.get(labels.group) ?? 0,
    };
  });
}

// The q-quantile of a histogram's samples in between, interpolated like Prometheus; undefined: no samples.
export function quantile(now: Reading, before: Reading | undefined, name: string, q: number): number | undefined {
  const past = new Map((before?.get(`${name}_bucket`) ?? []).map((s) => [s.labels.le, s.value]));
  const buckets = (now.get(`${name}_bucket`) ?? []).map((s) => ({
    le: s.labels.le === "+Inf" ? Infinity : Number(s.labels.le),
    n: s.value - (past.get(s.labels.le) ?? 0),
  }));
  const total = buckets[buckets.length - 1]?.n ?? 0;
  if (total <= 0) return;
  let lower = 0,
    below = 0;
  for (const { le, n } of buckets) {
    if (n >= q * total) return le === Infinity ? lower : lower + ((le - lower) * (q * total - below)) / (n - below);
    lower = le;
    below = n;
  }
}

// A hit rate since `before`: cached tokens of prompts, accepted tokens of drafts.
export function share(now: Reading, before: Reading | undefined, part: string, whole: string): number | undefined {
  const past = before ?? new Map();
  const n = (sum(now, whole) ?? 0) - (sum(past, whole) ?? 0);
  return now.has(whole) && n > 0 ? ((sum(now, part) ?? 0) - (sum(past, part) ?? 0)) / n : undefined;
}
