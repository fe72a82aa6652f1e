// One of a few views, chosen by a link: which one is in the URL.

import { html } from "../vendor/ui.js";
import { here } from "../core/address.js";

/**
 * @param {object} props
 * @param {string} props.label what is switched, for screen readers
 * @param {string} props.name of the parameter in the URL
 * @param {string} props.value the present one
 * @param {string[]} props.choices the first one is what counts when the URL has none
 */
export function Switch({ label, name, value, choices }) {
  return html`<span class="segments" role="group" aria-label=${label}>
    ${choices.map(
      (each) =>
        html`<a href=${here({ [name]: each === choices[0] ? null : each })} aria-current=${each === value ? "true" : null}>${each}</a>`,
    )}
  </span>`;
}
