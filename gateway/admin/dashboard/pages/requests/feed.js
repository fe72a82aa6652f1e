// The last requests, kept up to date: the list first, then what the gateway sends as it happens.

import { useCallback, useEffect, useRef, useState } from "../../vendor/ui.js";
import { ask, listen } from "../../core/api.js";
import { MOST_ROWS, merged, requestsIn, rowsOfEvent, rowsOfList } from "./kept.js";

const LIST_ROWS = 100;
const LONGEST_WAIT_SECONDS = 15;
const POLL_SECONDS = 3;
const RATE_SECONDS = 10;
const TOO_MANY = 429;

const START = { shown: null, stale: false, waiting: [], came: 0, problem: null, lost: false, perSecond: null };

/**
 * @param {object} query of `GET requests`. With `session` the list is asked again and again: `live` knows no sessions.
 * @param {boolean} held whether new rows wait instead of being shown
 * @returns {{
 *   shown: object[]|null, stale: boolean, waiting: object[], came: number, problem: Error|null, lost: boolean, perSecond: number|null,
 *   showWaiting: () => void, again: () => void,
 * }}
 *   shown: rows, newest first (`kept.js`); null until the first answer
 *   stale: whether `shown` is still the answer to another question
 *   came: how many requests `waiting` stands for
 *   lost: whether `problem` will mend by itself, and is being tried again
 *   perSecond: how many came, over the last ten seconds; null until that is known
 */
export function useFeed(query, held) {
  const [state, set] = useState(START);
  const [turn, setTurn] = useState(0);
  const holds = useRef(held);
  holds.current = held;
  const key = JSON.stringify(query);

  const showWaiting = useCallback(
    () => set((now) => (now.waiting.length ? { ...now, shown: merged(now.shown, now.waiting), waiting: [], came: 0 } : now)),
    [],
  );
  useEffect(() => {
    if (!held) showWaiting();
  }, [held]);

  useEffect(() => {
    const stop = new AbortController();
    const arrivals = [];
    // Of another question the old rows stay until the first answer, so that nothing flickers.
    let first = true;
    set((now) => ({ ...now, stale: now.shown !== null }));
    const take = (rowsBeside) => {
      if (stop.signal.aborted) return;
      const begins = first;
      first = false;
      set((now) => {
        const rows = rowsBeside(begins ? [] : [...now.waiting, ...now.shown]);
        const calm = { ...now, problem: null, lost: false };
        if (begins) return { ...calm, shown: merged([], rows), stale: false, waiting: [], came: 0, perSecond: null };
        if (!rows.length) return calm;
        if (!holds.current) return { ...calm, shown: merged(now.shown, rows) };
        return { ...calm, waiting: merged(now.waiting, rows), came: now.came + requestsIn(rows) };
      });
    };
    follow(query, stop.signal, {
      onList: (list) => take((known) => rowsOfList(list, known)),
      onEvent: (event) => {
        arrivals.push([performance.now(), event.requests.length + event.left_out]);
        take(() => rowsOfEvent(event));
      },
      onProblem: (problem, lost) => {
        const nothing = first;
        set((now) => ({ ...now, shown: nothing ? null : now.shown, problem, lost }));
      },
    });
    const timer = setInterval(() => {
      const since = performance.now() - RATE_SECONDS * 1000;
      while (arrivals.length && arrivals[0][0] < since) arrivals.shift();
      const perSecond = arrivals.reduce((sum, [, requests]) => sum + requests, 0) / RATE_SECONDS;
      set((now) => (now.perSecond === perSecond ? now : { ...now, perSecond }));
    }, RATE_SECONDS * 1000);
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [key, turn]);

  return { ...state, showWaiting, again: () => setTurn((before) => before + 1) };
}

/** Lists and listens until `signal` is aborted, and begins anew whenever the connection is lost. */
async function follow(query, signal, { onList, onEvent, onProblem }) {
  const list = async () => onList(await ask("requests", { ...query, limit: Math.min(LIST_ROWS, MOST_ROWS) }, { signal }));
  const { session, ...selected } = query;
  let wait = 1;
  while (!signal.aborted) {
    try {
      await list();
      if (session) {
        wait = 1;
        await pause(POLL_SECONDS, signal);
        continue;
      }
      let connected = false;
      const received = (name, event) => {
        if (!connected) {
          connected = true;
          wait = 1;
          // What came between the list and the stream is in neither. If this fails, so will the stream.
          list().catch(() => {});
        }
        if (name === "requests") onEvent(event);
      };
      await listen("live", selected, received, signal);
    } catch (problem) {
      if (signal.aborted) return;
      const refused = problem.status >= 400 && problem.status < 500 && problem.status !== TOO_MANY;
      onProblem(problem, !refused);
      if (refused) return;
    }
    await pause(wait, signal);
    wait = Math.min(wait * 2, LONGEST_WAIT_SECONDS);
  }
}

/** Waits, or less if `signal` is aborted meanwhile. */
function pause(seconds, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, seconds * 1000);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });
}
