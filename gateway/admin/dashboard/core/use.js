// What pages use to keep up with the gateway.

import { useCallback, useEffect, useRef, useState } from "../vendor/ui.js";
import { ask } from "./api.js";

/**
 * The answer to a question, asked again every few seconds while the tab is visible.
 *
 * While another question is on its way the old answer stays (`loading` is true), so that nothing flickers. After a
 * failure the last answer stays, too, with `problem` beside it.
 * @param {string|null} path null: ask nothing
 * @param {object} query
 * @param {number} seconds how often; 0: once
 * @returns {{value: any, problem: Error|null, loading: boolean, at: number|null, refresh: () => void}}
 *   at: when `value` came, milliseconds
 */
export function useAsked(path, query = {}, seconds = 5) {
  const [state, set] = useState({ value: null, problem: null, at: null, key: "" });
  const [turn, again] = useState(0);
  const key = path === null ? "" : JSON.stringify([path, query]);
  const latest = useRef(key);
  latest.current = key;
  const refresh = useCallback(() => again((before) => before + 1), []);
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    let timer;
    const run = async () => {
      clearTimeout(timer);
      if (document.hidden) return;
      try {
        const value = await ask(path, query, { signal: stop.signal });
        if (latest.current === key) set({ value, problem: null, at: Date.now(), key });
      } catch (problem) {
        if (stop.signal.aborted) return;
        // What another question was answered would be taken for the answer to this one.
        set((before) => ({ ...before, value: before.key === key ? before.value : null, problem, key }));
      }
      if (seconds && !stop.signal.aborted) timer = setTimeout(run, seconds * 1000);
    };
    run();
    const seen = () => !document.hidden && run();
    document.addEventListener("visibilitychange", seen);
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [key, seconds, turn]);
  const { value, problem, at } = state;
  return { value, problem, loading: state.key !== key, at, refresh };
}

/** The document's title while a page is shown. */
export function useTitle(title) {
  useEffect(() => {
    document.title = `${title} · Prefix Gateway`;
  }, [title]);
}
