// A series of `GET reasons` as columns of a chart, and what it says about the direction things take.

const MOST = { wide: 90, narrow: 45 };
const narrowScreen = matchMedia("(max-width: 760px)");

/** Whether there is room for half as many columns only, as on a phone. */
export const narrow = () => narrowScreen.matches;
const WIDTHS = [10, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 14400];

/**
 * Buckets put together until there are at most 90, or 45 on a narrow screen. Columns begin at whole multiples of their
 * width, so that they stay where they are while time goes on.
 * @param {{step_seconds: number, buckets: object[]}} series as `GET reasons` answers
 * @returns {{width: number, columns: {start: number, prompt_tokens: number, hits: number,
 *   reasons: Record<string, number>, groups: Record<string, number>}[]}} width: seconds; groups: missed tokens
 */
export function columnsOf(series) {
  const step = series.step_seconds;
  const most = narrow() ? MOST.narrow : MOST.wide;
  const width = WIDTHS.find((each) => each % step === 0 && (series.buckets.length * step) / each <= most) ?? step;
  const byStart = new Map();
  for (const bucket of series.buckets) {
    const start = Math.floor(bucket.start / width) * width;
    let column = byStart.get(start);
    if (!column) byStart.set(start, (column = { start, prompt_tokens: 0, hits: 0, reasons: sums(), groups: sums() }));
    column.prompt_tokens += bucket.prompt_tokens;
    column.hits += bucket.hits;
    for (const [code, tokens] of Object.entries(bucket.reasons)) add(column.reasons, code, tokens);
    for (const [name, sums] of Object.entries(bucket.groups ?? {})) add(column.groups, name, sums.missed);
  }
  return { width, columns: [...byStart.values()] };
}

/**
 * Hit rate of the first and of the second half of what is covered; null where a half has no requests.
 * @returns {{first: number, second: number}|null} shares, 0 to 1
 */
export function halves(buckets) {
  const middle = Math.floor(buckets.length / 2);
  const first = rate(buckets.slice(0, middle));
  const second = rate(buckets.slice(middle));
  return first === null || second === null ? null : { first, second };
}

/** Sums by name. Clients choose some names, "constructor" if they like, so there is nothing in it but what was put there. */
const sums = () => Object.create(null);

function add(to, name, tokens) {
  to[name] = (to[name] ?? 0) + tokens;
}

function rate(buckets) {
  const tokens = buckets.reduce((sum, bucket) => sum + bucket.prompt_tokens, 0);
  return tokens ? buckets.reduce((sum, bucket) => sum + bucket.hits, 0) / tokens : null;
}
