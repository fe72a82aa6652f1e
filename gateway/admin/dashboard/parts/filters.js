// The window and the filters, for every page that shows figures of requests.

import { html, useRef } from "../vendor/ui.js";
import { FILTERS, WINDOWS, here, open, useAddress } from "../core/address.js";
import { WINDOW_WORDS } from "../core/format.js";
import { useAsked } from "../core/use.js";

const WORDS = { model: "Model", tenant: "Tenant", source: "Source", template: "Template", prompt: "Application" };
const GROUPS = { model: "by_model", tenant: "by_tenant", source: "by_source", template: "by_template", prompt: "by_prompt" };

export function Filters() {
  const at = useAddress();
  const page = at.path[0] ?? "";
  const applies = page === "" || page === "reasons" || page === "requests";
  // Without the filters themselves: what could be chosen instead has to stay in the lists.
  const all = useAsked(applies ? "summary" : null, { window: at.window }, 30).value;
  if (!applies || (page === "requests" && at.path.length > 1)) return null;
  return html`
    <form class="filters" aria-label="What is shown" onSubmit=${(event) => event.preventDefault()}>
      ${page !== "requests" &&
      html`<span class="segments" role="group" aria-label="Window">
        ${WINDOWS.map(
          (name) =>
            html`<a href=${here({ window: name })} aria-current=${name === at.window ? "true" : null} title=${`The last ${WINDOW_WORDS[name]}`}>
              ${name}
            </a>`,
        )}
      </span>`}
      ${FILTERS.map(
        (name) => html`<${Choice} name=${name} value=${at.filters[name] ?? ""} known=${(all?.[GROUPS[name]] ?? []).map((row) => row[name])} />`,
      )}
    </form>
  `;
}

function Choice({ name, value, known }) {
  const field = useRef(null);
  const values = value && !known.includes(value) ? [value, ...known] : known;
  if (!value && values.length < 2) return null;
  return html`<label>
    <span class="sr">${WORDS[name]}</span>
    <select ref=${field} value=${value} class=${value ? "set" : ""} onChange=${() => open(here({ [name]: field.current.value }))}>
      <option value="">${WORDS[name]}: all</option>
      ${values.map((each) => html`<option value=${each} selected=${each === value}>${each}</option>`)}
    </select>
  </label>`;
}
