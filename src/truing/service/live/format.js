// Numbers and times as text.

const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const shares = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const shortShares = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 2 });
const threeDigits = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const fourDigits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

const orDash = (format) => (value) => (Number.isFinite(value) ? format(value) : "–");

export const count = orDash((value) => counts.format(value));
export const share = orDash((value) => shares.format(value));
export const shortShare = orDash((value) => shortShares.format(value));
export const rate = orDash((value) => (value >= 1000 ? counts.format(value) : threeDigits.format(value)));
export const score = orDash((value) => fourDigits.format(value));
export const duration = orDash((seconds) =>
  seconds >= 1 ? `${threeDigits.format(seconds)} s` : `${threeDigits.format(1000 * seconds)} ms`,
);

/** Format evidence, given its decimal logarithm. */
export const evidence = orDash((log) => {
  if (log >= -3 && log < 6) return rate(10 ** log);
  return `10${counts.format(log).replace(/./g, (letter) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[letter] ?? "⁻")}`;
});

/** Format a time of day: with seconds in short buckets, and with the date in buckets of hours. */
export function time(seconds, bucketSeconds) {
  const parts = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (bucketSeconds < 60) parts.second = "2-digit";
  if (bucketSeconds > 60) Object.assign(parts, { month: "short", day: "numeric" });
  return new Intl.DateTimeFormat("en", parts).format(new Date(1000 * seconds));
}

/** Format a time on an axis with this many seconds between ticks. */
export function tick(seconds, step) {
  const parts = step < 86_400 ? { hour: "2-digit", minute: "2-digit", hourCycle: "h23" } : { month: "short", day: "numeric" };
  if (step < 60) parts.second = "2-digit";
  return new Intl.DateTimeFormat("en", parts).format(new Date(1000 * seconds));
}
