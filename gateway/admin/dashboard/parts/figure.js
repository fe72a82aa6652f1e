// One number with what it is, and what it was compared with.

import { html } from "../vendor/ui.js";

/** @param {{name: string, value: string, exact?: string, note?: any, tone?: string}} props tone: "good", "bad" or "" */
export function Figure({ name, value, exact, note, tone = "" }) {
  return html`<div class="figure">
    <dt>${name}</dt>
    <dd class=${tone} title=${exact}>${value}</dd>
    ${note && html`<dd class="hint">${note}</dd>`}
  </div>`;
}

export const Figures = ({ children }) => html`<dl class="figures">${children}</dl>`;
