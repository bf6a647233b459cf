// Numbers as people read them.

const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const shares = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const roundShares = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 2 });
const rates = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const large = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const NOTHING = "–";

const said = (format) => (value) => (Number.isFinite(value) ? format(value) : NOTHING);

export const count = said((value) => counts.format(value));
export const share = said((value) => shares.format(value));
export const roundShare = said((value) => roundShares.format(value));
export const rate = said((value) => (value >= 1000 ? counts.format(value) : rates.format(value)));

/** Return evidence, which comes as its decimal logarithm. */
export const evidence = said((log) => {
  if (log < -3 || log >= 15) return `10^${counts.format(log)}`;
  return log < 6 ? rates.format(10 ** log) : large.format(10 ** log);
});

/** Return a time of day: with seconds where spans are of seconds, and with its day where they are of hours. */
export function time(seconds, spanSeconds) {
  const parts = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (spanSeconds < 60) parts.second = "2-digit";
  if (spanSeconds > 60) Object.assign(parts, { month: "short", day: "numeric" });
  return new Intl.DateTimeFormat("en", parts).format(new Date(1000 * seconds));
}

/** Return a time as it stands under a chart whose marks are so many seconds apart: no more of it than tells them apart. */
export function tick(seconds, step) {
  const parts = step < 86_400 ? { hour: "2-digit", minute: "2-digit", hourCycle: "h23" } : { month: "short", day: "numeric" };
  if (step < 60) parts.second = "2-digit";
  return new Intl.DateTimeFormat("en", parts).format(new Date(1000 * seconds));
}
