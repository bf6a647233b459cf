// The buckets of the chosen model and time span. The server sends only new buckets, and they are collected here.

const FEWEST_SECONDS = 2; // The newest bucket is shown once it covers this many seconds.
const FEWEST_BUCKETS = 12; // With fewer buckets, the time axis starts with a gap.

export class Series {
  /** Start again, if another model or time span was chosen. */
  select(key) {
    if (key !== this.key) Object.assign(this, { key, next: 0, columns: {} });
  }

  /** Add the buckets of an answer. They replace buckets of the same time, and the oldest buckets are dropped. */
  add({ series, now, seconds, length, next }) {
    const first = series.times[0] ?? Infinity;
    const kept = [...(this.columns.times ?? []).entries()].filter(([, time]) => time >= now - seconds * length && time < first);
    for (const [name, fresh] of Object.entries(series)) {
      const old = this.columns[name] ?? [];
      this.columns[name] = [...kept.map(([place]) => old[place]), ...fresh];
    }
    Object.assign(this, { next, seconds, now });
  }

  /** Return the buckets, oldest first, as objects. `elapsed` is the number of seconds that a bucket covers. */
  buckets() {
    const names = Object.keys(this.columns);
    return (this.columns.times ?? [])
      .map((time, place) => ({
        ...Object.fromEntries(names.map((name) => [name, this.columns[name][place]])),
        elapsed: Math.min(this.seconds, this.now - time),
      }))
      .filter((bucket) => bucket.elapsed >= FEWEST_SECONDS);
  }
}

/** Return the buckets, with an empty bucket added in each gap, so that lines break there, and before a short series. */
export function withGaps(buckets, seconds) {
  const drawn = buckets.flatMap((bucket, place) => {
    const isAfterGap = place > 0 && bucket.times - buckets[place - 1].times > 1.5 * seconds;
    return isAfterGap ? [{ times: bucket.times - seconds }, bucket] : [bucket];
  });
  const start = buckets.at(-1)?.times - FEWEST_BUCKETS * seconds;
  return buckets[0]?.times > start ? [{ times: start }, ...drawn] : drawn;
}
