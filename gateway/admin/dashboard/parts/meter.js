// A share as a bar and as a number.

import { html } from "../vendor/ui.js";
import { percent } from "../core/format.js";

/** @param {{share: number|null}} props 0 to 1; null: of nothing */
export function Meter({ share }) {
  return html`<span class="metered"
    ><span class="meter" aria-hidden="true"><i style=${{ width: `${Math.min(share ?? 0, 1) * 100}%` }}></i></span>
    <span class="amount">${percent(share)}</span></span
  >`;
}
