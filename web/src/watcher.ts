// Polls /metrics every second while the page is visible, once the dashboard has been opened.
import type { Api, ServerError } from "./api";
import { momentOf, parseMetrics, type Moment, type Reading } from "./metrics";

export const span = 120; // seconds kept

export class Watcher {
  moments: Moment[] = [];
  now: Reading | undefined;
  failure = "";
  private readings: { at: number; reading: Reading }[] = []; // of the last minute
  private started = false;

  constructor(
    private readonly api: Api,
    private readonly changed: () => void,
  ) {}

  start() {
    if (this.started) return;
    this.started = true;
    void this.look();
  }

  get minuteAgo(): Reading | undefined {
    return this.readings[0]?.reading;
  }

  private async look() {
    if (!document.hidden) {
      try {
        this.take(parseMetrics(await this.api.metrics()));
        this.failure = "";
      } catch (e) {
        this.failure = (e as ServerError).message;
      }
      this.changed();
    }
    setTimeout(() => void this.look(), 1000);
  }

  private take(reading: Reading) {
    const at = performance.now(),
      last = this.readings.at(-1);
    if (last && at - last.at < 5000) this.moments.push(momentOf(reading, last.reading, at, (at - last.at) / 1000));
    this.moments = this.moments.filter((m) => at - m.at < span * 1000);
    this.readings.push({ at, reading });
    this.readings = this.readings.filter((r) => at - r.at <= 60_000);
    this.now = reading;
  }
}
