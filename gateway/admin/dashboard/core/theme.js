// Light or dark: as the system says, unless it was chosen.

const KEY = "prefix-gateway-theme";
export const THEME_CHANGED = "theme-changed";

const system = matchMedia("(prefers-color-scheme: dark)");

/** What is shown: "light" or "dark". */
export function theme() {
  const chosen = localStorage.getItem(KEY);
  return chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light";
}

export function toggleTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, next);
  show();
}

/** Put it into force. Charts are drawn in colours of their own, so they are notified. */
export function show() {
  document.documentElement.dataset.theme = theme();
  dispatchEvent(new Event(THEME_CHANGED));
}

system.addEventListener("change", show);
