// Names with their values, in two columns.

import { html } from "../vendor/ui.js";

/** @param {{rows: [string, any][]}} props rows whose value is null, undefined, false or "" are left out */
export function Facts({ rows }) {
  const there = rows.filter(([, value]) => value !== null && value !== undefined && value !== false && value !== "");
  return html`<dl class="facts">${there.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}
