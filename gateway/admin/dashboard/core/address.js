// The view lives in the URL: which page, which window, which filters. A view can be shared, reloaded and gone back to.

import { useEffect, useState } from "../vendor/ui.js";

export const ROOT = "/dashboard";
export const WINDOWS = ["15m", "1h", "24h", "7d"];
export const FILTERS = ["model", "tenant", "source", "template", "prompt"];
/** What stays in the URL when another page is opened. */
const KEPT = ["window", ...FILTERS];

const CHANGED = "address-changed";

/**
 * What the URL says now.
 * @returns {{path: string[], query: URLSearchParams, window: string, filters: Record<string, string>}}
 *   path: below /dashboard, decoded; filters: only those that are set.
 */
export function address() {
  const query = new URLSearchParams(location.search);
  const path = location.pathname.slice(ROOT.length).split("/").filter(Boolean).map(decoded);
  const asked = query.get("window") ?? "";
  const filters = {};
  for (const name of FILTERS) if (query.get(name)) filters[name] = query.get(name);
  return { path, query, window: WINDOWS.includes(asked) ? asked : "15m", filters };
}

/**
 * The URL of a page, with the window and the filters of the present view.
 * @param {string[]} path below /dashboard, not encoded
 * @param {Record<string, string|null>} changes to the query; null or "" takes a parameter out
 */
export function link(path, changes = {}) {
  const now = new URLSearchParams(location.search);
  const query = new URLSearchParams();
  for (const name of KEPT) if (now.get(name)) query.set(name, now.get(name));
  return assembled(path, query, changes);
}

/** The URL of the present page with some of its query changed; everything else in it stays. */
export function here(changes) {
  return assembled(address().path, new URLSearchParams(location.search), changes);
}

/** Open a URL of the dashboard without loading the page anew. */
export function open(url, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", url);
  dispatchEvent(new Event(CHANGED));
}

/** The present address; a component that uses it is drawn again when it changes. */
export function useAddress() {
  const [now, set] = useState(address);
  useEffect(() => {
    const changed = () => set(address());
    addEventListener(CHANGED, changed);
    addEventListener("popstate", changed);
    return () => {
      removeEventListener(CHANGED, changed);
      removeEventListener("popstate", changed);
    };
  }, []);
  return now;
}

/** Ordinary clicks on links of the dashboard stay in the page; everything else is the browser's. */
export function followLinks() {
  document.addEventListener("click", (event) => {
    const anchor = event.target instanceof Element ? event.target.closest("a[href]") : null;
    const plain = event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
    if (!anchor || !plain || event.defaultPrevented || anchor.target || anchor.origin !== location.origin) return;
    if (anchor.pathname !== ROOT && !anchor.pathname.startsWith(`${ROOT}/`)) return;
    if (anchor.getAttribute("href").startsWith("#")) return;
    event.preventDefault();
    const samePage = anchor.pathname === location.pathname;
    open(anchor.href);
    if (samePage) return;
    // The other page is drawn by then.
    requestAnimationFrame(() => {
      scrollTo(0, 0);
      document.querySelector("h1")?.focus({ preventScroll: true });
    });
  });
}

function assembled(path, query, changes) {
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  return [ROOT, ...path.map(encodeURIComponent)].join("/") + (text ? `?${text}` : "");
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
