// Lines over time, bars, and the roofline; plain SVG at the available width.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Moment } from "./metrics";
import { span } from "./watcher";

export function compact(x: number, unit = ""): string {
  const steps: [number, string][] = [
    [1e15, "P"],
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ];
  const [size, letter] = steps.find(([s]) => Math.abs(x) >= s * 0.9995 && (s > 1e3 || Math.abs(x) >= 9999.5 || unit !== "")) ?? [1, ""];
  const y = x / size;
  const digits = y === 0 || Math.abs(y) >= 99.95 ? 0 : Math.abs(y) >= 9.995 ? 1 : 2;
  return `${size === 1 && unit === "" && Number.isInteger(x) ? x : y.toFixed(digits)}${unit || letter ? " " : ""}${letter}${unit}`;
}

function useWidth() {
  const ref = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(600);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.max(200, Math.round(entry.contentRect.width))));
    watch.observe(ref.current!);
    return () => watch.disconnect();
  }, []);
  return { ref, width };
}

export interface Series {
  label: string;
  class: string;
  value: (m: Moment) => number | undefined;
}

// The next 1, 2 or 5 times a power of ten.
function niceTop(x: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(x, 1)));
  return [1, 2, 5, 10].find((n) => n * power >= x)! * power;
}

interface Placed {
  x: number;
  y: number;
}

// Runs of moments with a value.
function runs(moments: Moment[], value: Series["value"], place: (m: Moment, v: number) => Placed): Placed[][] {
  const out: Placed[][] = [[]];
  for (const m of moments) {
    const v = value(m);
    if (v === undefined) out.push([]);
    else out[out.length - 1].push(place(m, v));
  }
  return out.filter((run) => run.length > 0);
}

// The window of a chart grows with what there is to show.
function secondsShown(moments: Moment[]): number {
  const age = moments.length ? (moments[moments.length - 1].at - moments[0].at) / 1000 : 0;
  return [30, 60].find((s) => age <= s) ?? span;
}

const lineOf = (run: Placed[]) => run.map((p, i) => `${i ? "L" : "M"}${p.x.toFixed(1)} ${p.y.toFixed(1)}`).join("");

export function LineChart({ moments, series, unit, height = 200 }: { moments: Moment[]; series: Series[]; unit: string; height?: number }) {
  const { ref, width } = useWidth();
  const left = 44,
    bottom = 22,
    top = 8;
  const most = niceTop(Math.max(1, ...moments.flatMap((m) => series.map((s) => s.value(m) ?? 0))));
  const end = moments.at(-1)?.at ?? 0;
  const seconds = secondsShown(moments);
  const y = (v: number) => top + (height - top - bottom) * (1 - v / most);
  const place = (m: Moment, v: number) => ({ x: left + (width - left) * (1 - (end - m.at) / 1000 / seconds), y: y(v) });
  const now = series.map((s) => `${s.label} ${compact(s.value(moments.at(-1)!) ?? 0)}`).join(", ");
  return (
    <div ref={ref} class="chart">
      <svg width={width} height={height} role="img" aria-label={`${unit} over ${seconds} seconds: now ${now}`}>
        {[0, 0.5, 1].map((f) => (
          <g key={f}>
            <path class="gridline" d={`M${left} ${y(f * most)}H${width}`} />
            <text x={left - 8} y={y(f * most) + 4} text-anchor="end">
              {compact(f * most)}
            </text>
          </g>
        ))}
        {[`${seconds} s ago`, `${seconds / 2} s`, "now"].map((label, i) => (
          <text key={label} x={left + ((width - left) * i) / 2} y={height - 4} text-anchor={["start", "middle", "end"][i] as "start"}>
            {label}
          </text>
        ))}
        {series.map((s) =>
          runs(moments, s.value, place).map((run, i) => (
            <g key={`${s.label}${i}`} class={s.class}>
              <path class="area" d={`${lineOf(run)}L${run[run.length - 1].x.toFixed(1)} ${y(0)}L${run[0].x.toFixed(1)} ${y(0)}Z`} />
              <path class="line" d={lineOf(run)} />
            </g>
          )),
        )}
      </svg>
      <p class="legend" aria-hidden="true">
        {series.map((s) => (
          <span key={s.label} class={s.class}>
            <i />
            {s.label}
          </span>
        ))}
      </p>
    </div>
  );
}

export function Spark({ moments, value, class: name = "a" }: { moments: Moment[]; value: Series["value"]; class?: string }) {
  const width = 120,
    height = 28,
    seconds = Math.min(60, secondsShown(moments));
  const end = moments.at(-1)?.at ?? 0;
  const shown = moments.filter((m) => end - m.at <= seconds * 1000);
  const most = Math.max(1e-9, ...shown.map((m) => value(m) ?? 0));
  const place = (m: Moment, v: number) => ({ x: width * (1 - (end - m.at) / 1000 / seconds), y: 2 + (height - 4) * (1 - v / most) });
  return (
    <svg class={`spark ${name}`} viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
      {runs(shown, value, place).map((run, i) => (
        <path key={i} class="line" d={lineOf(run)} />
      ))}
    </svg>
  );
}

// `more` is a lighter segment after the first.
export function Bar({
  label,
  share,
  more = 0,
  text,
  class: name = "a",
}: {
  label: string;
  share: number | undefined;
  more?: number;
  text: string;
  class?: string;
}) {
  const within = (x: number) => 100 * Math.max(0, Math.min(1, x));
  return (
    <div class={`bar ${name}`}>
      <p>
        <span>{label}</span>
        <span class="figure">{text}</span>
      </p>
      <svg viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label={`${label}: ${text}`}>
        <rect width="100" height="1" class="track" />
        {more > 0 && <rect width={within((share ?? 0) + more)} height="1" class="fill more" />}
        <rect width={within(share ?? 0)} height="1" class="fill" />
      </svg>
    </div>
  );
}

// ---- the roofline (Williams, Waterman and Patterson, 2009)

export interface Roof {
  bytes: number; // a second
  flops: number;
}

export interface Point {
  intensity: number; // flops a byte
  flops: number; // per second of computing
  age: number; // seconds
}

// The operating point of a moment while computing; idle moments have none.
export function pointOf(m: Moment, now: number): Point | undefined {
  if (!m.bytes || !m.flops || !m.busy || m.busy < 0.02) return;
  return { intensity: m.flops / m.bytes, flops: m.flops / m.busy, age: (now - m.at) / 1000 };
}

const powers = (low: number, high: number) => {
  const out: number[] = [];
  for (let p = Math.ceil(Math.log10(low) - 1e-9); p <= Math.log10(high) + 1e-9; p++) out.push(10 ** p);
  return out;
};

export function Roofline({ roof, points, height = 300 }: { roof: Roof; points: Point[]; height?: number }) {
  const { ref, width } = useWidth();
  const ridge = roof.flops / roof.bytes;
  const least = (values: number[], otherwise: number) => Math.min(otherwise, ...values);
  const low = least(
      points.map((p) => p.intensity / 2),
      ridge / 60,
    ),
    high = Math.max(ridge * 12, ...points.map((p) => p.intensity * 2));
  const floor = least(
      points.map((p) => p.flops / 2),
      (roof.bytes * low) / 2,
    ),
    ceiling = roof.flops * 2.5;
  const left = 64,
    bottom = 36,
    top = 6;
  const x = (v: number) => left + ((width - left - 8) * Math.log(v / low)) / Math.log(high / low);
  const y = (v: number) => top + (height - top - bottom) * (1 - Math.log(v / floor) / Math.log(ceiling / floor));
  const roofPath = `M${x(low)} ${y(Math.max(floor, roof.bytes * low))}L${x(ridge)} ${y(roof.flops)}H${x(high)}`;
  const slope = (Math.atan2(y(roof.flops) - y(roof.bytes * low), x(ridge) - x(low)) * 180) / Math.PI;
  const here = points.at(-1);
  const reach = here && here.flops / Math.min(roof.flops, roof.bytes * here.intensity);
  const middle = Math.sqrt(low * ridge);
  return (
    <div ref={ref} class="chart roofline">
      <svg
        width={width}
        height={height}
        role="img"
        aria-label={
          here
            ? `Roofline: ${compact(here.flops, "flop/s")} at ${here.intensity.toPrecision(2)} flops a byte, ${Math.round(100 * reach!)} percent of the roof`
            : "Roofline: the engine is idle"
        }
      >
        <path class="under" d={`${roofPath}V${y(floor)}H${x(low)}Z`} />
        {powers(low, high).map((v) => (
          <g key={v}>
            <path class="gridline" d={`M${x(v)} ${top}V${y(floor)}`} />
            <text x={x(v)} y={height - 20} text-anchor="middle">
              {compact(v)}
            </text>
          </g>
        ))}
        {powers(floor, ceiling).map((v) => (
          <g key={v}>
            <path class="gridline" d={`M${left} ${y(v)}H${width - 8}`} />
            <text x={left - 8} y={y(v) + 4} text-anchor="end">
              {compact(v, " ").replace(/\.0+ /, " ").trim()}
            </text>
          </g>
        ))}
        <text x={(left + width) / 2} y={height - 4} text-anchor="middle">
          flops for each byte moved
        </text>
        <text transform={`translate(11 ${(height - bottom) / 2}) rotate(-90)`} text-anchor="middle">
          flop/s
        </text>
        <path class="roof" d={roofPath} />
        <text class="roof-name" transform={`translate(${x(middle)} ${y(roof.bytes * middle) - 8}) rotate(${slope})`} text-anchor="middle">
          memory {compact(roof.bytes, "B/s")}
        </text>
        <text class="roof-name" x={width - 14} y={y(roof.flops) - 8} text-anchor="end">
          arithmetic {compact(roof.flops, "flop/s")}
        </text>
        {points.length > 1 && <path class="trail" d={lineOf(points.map((p) => ({ x: x(p.intensity), y: y(p.flops) })))} />}
        {points.slice(0, -1).map((p, i) => (
          <circle key={i} class="past" cx={x(p.intensity)} cy={y(p.flops)} r="3" opacity={Math.max(0.08, 0.7 * (1 - p.age / 60))} />
        ))}
        {here && (
          <g class={here.age < 3 ? "here" : "here old"}>
            <path class="gap" d={`M${x(here.intensity)} ${y(here.flops)}V${y(Math.min(roof.flops, roof.bytes * here.intensity))}`} />
            <circle class="halo" cx={x(here.intensity)} cy={y(here.flops)} r="11" />
            <circle cx={x(here.intensity)} cy={y(here.flops)} r="5.5" />
            <text x={Math.min(x(here.intensity) + 14, width - 112)} y={y(here.flops) + 26}>
              {Math.round(100 * reach!)} % of the roof
            </text>
          </g>
        )}
      </svg>
    </div>
  );
}
