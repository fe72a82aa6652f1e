// The texts of reasons and rungs. They come from the gateway, once, and do not change while it runs.

import { useEffect, useState } from "../vendor/ui.js";
import { ask } from "../core/api.js";

const NOTHING = { reasons: new Map(), rungs: new Map() };
let known = null;

/**
 * @returns {{reasons: Map<string, {code, title, meaning, advice, rung, remedy}>, rungs: Map<string, {rung, title, meaning}>}}
 *   both in the ladder's order; empty until they are there
 */
export function useCatalog() {
  const [catalog, set] = useState(known ?? NOTHING);
  useEffect(() => {
    if (known) return undefined;
    const stop = new AbortController();
    // A page that needs the texts asks for the figures, too, and shows a problem if there is no answer.
    load(stop.signal).then(set, () => {});
    return () => stop.abort();
  }, []);
  return catalog;
}

async function load(signal) {
  const { catalog, rungs } = await ask("reasons", {}, { signal });
  known = {
    reasons: new Map(catalog.map((reason) => [reason.code, reason])),
    rungs: new Map(rungs.map((rung) => [rung.rung, rung])),
  };
  return known;
}
