// Numbers as people read them.

const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const shares = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const rates = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const large = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const NOTHING = "–";

const said = (format) => (value) => (Number.isFinite(value) ? format(value) : NOTHING);

export const count = said((value) => counts.format(value));
export const share = said((value) => shares.format(value));
export const rate = said((value) => (value >= 1000 ? counts.format(value) : rates.format(value)));

/** Return evidence, which comes as its decimal logarithm. */
export const evidence = said((log) => (log < 15 ? large.format(10 ** log) : `10^${counts.format(log)}`));

/** Return a time of day, with its day where spans are long. */
export function time(seconds, spanSeconds) {
  const parts = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (spanSeconds < 60) parts.second = "2-digit";
  if (spanSeconds > 60) Object.assign(parts, { month: "short", day: "numeric" });
  return new Intl.DateTimeFormat("en", parts).format(new Date(1000 * seconds));
}
