// Numbers, times and amounts as people read them. Everything that may be missing is "–" then.

const NONE = "–";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });
const missing = (value) => value === null || value === undefined || Number.isNaN(value);

/** 12,438 */
export const count = (value) => (missing(value) ? NONE : whole.format(value));

/** 1 request, 12,438 requests */
export const counted = (value, thing) => `${count(value)} ${thing}${value === 1 ? "" : "s"}`;

/** 12.4K: for figures; the exact number belongs in a title beside it. */
export const brief = (value) => (missing(value) ? NONE : short.format(value));

/** 0.4181 -> 41.8 % */
export function percent(share, digits = 1) {
  return missing(share) ? NONE : `${(share * 100).toFixed(digits)} %`;
}

/** 0.404 -> 40.4 points: how far a hit rate moves */
export function points(share) {
  if (missing(share)) return NONE;
  return share > 0 && share < 0.0005 ? "under 0.1 points" : `${(share * 100).toFixed(1)} points`;
}

/** 0.181 -> +18.1 points: what a hit rate would gain */
export const gained = (share) => (share > 0 && share < 0.0005 ? points(share) : `+${points(share)}`);

/** Seconds as 412 µs, 75 ms, 1.30 s, 4 min 10 s, 2.5 h. */
export function seconds(value) {
  if (missing(value)) return NONE;
  if (value === 0) return "0 s";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  return hours(value);
}

/** Seconds as 45 s, 12 min, 3 h, 2 days: where more would be noise. */
export function roughly(value) {
  if (missing(value)) return NONE;
  if (value < 60) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 129600) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} days`;
}

/** Seconds as hours: for GPU time. */
export function hours(value) {
  if (missing(value)) return NONE;
  const amount = value / 3600;
  return `${amount >= 100 ? whole.format(amount) : amount.toPrecision(2)} h`;
}

/** GPU seconds: in seconds while they are few, else in hours. */
export const gpu = (value) => (missing(value) ? NONE : value < 3600 ? seconds(value) : hours(value));

/** An amount with its currency. */
export function money(value, currency) {
  if (missing(value)) return NONE;
  const digits = value >= 100 ? 0 : value >= 0.1 || value === 0 ? 2 : 4;
  try {
    return new Intl.NumberFormat("en-US", {
      style: "currency",
      currency,
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    }).format(value);
  } catch {
    return `${value.toFixed(digits)} ${currency}`;
  }
}

/** Unix seconds as 15:04:05 of the browser's time zone. */
export function clock(unix) {
  return missing(unix) ? NONE : new Date(unix * 1000).toLocaleTimeString("en-GB");
}

/** Unix seconds as 21 Nov, 15:04. */
export function moment(unix) {
  if (missing(unix)) return NONE;
  return new Date(unix * 1000).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
}

/** How long ago: "12 s ago". */
export function ago(unix, now = Date.now() / 1000) {
  if (missing(unix)) return NONE;
  const passed = Math.max(Math.round(now - unix), 1);
  return `${passed < 60 ? `${passed} s` : seconds(passed)} ago`;
}

/** The words of a window. */
export const WINDOW_WORDS = { "15m": "15 minutes", "1h": "hour", "24h": "24 hours", "7d": "7 days" };
