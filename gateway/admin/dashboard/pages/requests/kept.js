// The rows that the live feed keeps: requests, and the places where some were left out between them.

/** Rows kept in the page. */
export const MOST_ROWS = 200;

/**
 * @typedef {object} Row one of `GET requests`, or a gap: {at, gap: number|null}; null if it is not known how many
 */

/** What tells a row apart from all others: clients choose ids, and may use one twice. */
export const keyOf = (row) => ("gap" in row ? `gap ${row.at}` : `${row.at} ${row.id}`);

/** Both together, newest first, each row once; the oldest are dropped. */
export function merged(rows, more) {
  const all = new Map();
  for (const row of [...more, ...rows]) if (!all.has(keyOf(row))) all.set(keyOf(row), row);
  return [...all.values()].sort((one, other) => other.at - one.at).slice(0, MOST_ROWS);
}

/** The rows of an event of `live`, with a gap behind them if some were left out. */
export function rowsOfEvent({ requests, left_out }) {
  return left_out ? [...requests, gapBehind(requests, left_out)] : requests;
}

/**
 * What of a list is not known yet; with a gap behind it if there may be more between it and what is known.
 * @param {{requests: Row[], more: boolean}} list the answer to `GET requests`
 */
export function rowsOfList({ requests, more }, known) {
  const keys = new Set(known.map(keyOf));
  const fresh = requests.filter((row) => !keys.has(keyOf(row)));
  const meets = !keys.size || fresh.length < requests.length || !more;
  return meets ? fresh : [...fresh, gapBehind(requests, null)];
}

/** How many requests rows stand for. */
export const requestsIn = (rows) => rows.reduce((sum, row) => sum + ("gap" in row ? (row.gap ?? 0) : 1), 0);

/** Just older than the last of some rows. */
const gapBehind = (rows, gap) => ({ at: rows.at(-1).at - 1e-4, gap });
