// What the server told over time, kept here column by column, so that only what is new is asked for.

const SETTLED = 5; // Seconds after which a span that is still open has something to say.

export class Series {
  constructor() {
    this.forget();
  }

  /** Forget all of it, to start from the beginning. */
  forget() {
    this.next = 0;
    this.columns = {};
  }

  /** Take an answer: its spans replace those of the same time, and the oldest leave. */
  take(told) {
    const { times } = told.series;
    const oldest = told.now - told.seconds * told.length;
    const from = times.length ? times[0] : Infinity;
    const kept = [...(this.columns.times ?? []).entries()].filter(([, time]) => time >= oldest && time < from);
    for (const [name, fresh] of Object.entries(told.series)) {
      const old = this.columns[name] ?? [];
      this.columns[name] = [...kept.map(([place]) => old[place]), ...fresh];
    }
    this.next = told.next;
    this.seconds = told.seconds;
    this.now = told.now;
  }

  /** Return the spans that say something, oldest first, each with all its numbers. */
  spans() {
    const { times = [] } = this.columns;
    const names = Object.keys(this.columns);
    const enough = Math.min(this.seconds, SETTLED);
    return [...times.keys()]
      .map((place) => Object.fromEntries(names.map((name) => [name, this.columns[name][place]])))
      .map((span) => ({ ...span, lasted: Math.min(this.seconds, this.now - span.times) }))
      .filter((span) => span.lasted >= enough);
  }
}

/** Return spans with an empty one wherever time is missing between two, so that a line breaks there. */
export function withGaps(spans, seconds) {
  return spans.flatMap((span, place) => {
    const isAfterGap = place > 0 && span.times - spans[place - 1].times > 1.5 * seconds;
    return isAfterGap ? [{ times: span.times - seconds }, span] : [span];
  });
}
