// Which spaces are listed.

import { html } from "../../vendor/ui.js";
import { here, open } from "../../core/address.js";

const STATES = [
  ["", "all"],
  ["alive", "alive"],
  ["ended", "ended"],
];

/** @param {{state: string, filters: object, config: object|null, spaces: object[]}} props spaces: those listed now */
export function SpaceFilters({ state, filters, config, spaces }) {
  const models = (config?.models ?? []).map((model) => model.id);
  // Behind a trusted proxy there are tenants that no configuration names.
  const seen = spaces.filter((space) => space.tenant.startsWith("tenant:")).map((space) => space.tenant.slice(7));
  const tenants = [...new Set([...(config?.tenants ?? []).map((tenant) => tenant.id).filter((id) => id !== "*"), ...seen])].sort();
  return html`<form class="filters" aria-label="Which spaces" onSubmit=${(event) => event.preventDefault()}>
    <span class="segments" role="group" aria-label="State">
      ${STATES.map(([value, word]) => html`<a href=${here({ state: value })} aria-current=${value === state ? "true" : null}>${word}</a>`)}
    </span>
    <${Choice} name="model" word="Model" value=${filters.model ?? ""} known=${models} />
    <${Choice} name="tenant" word="Tenant" value=${filters.tenant ?? ""} known=${tenants} />
  </form>`;
}

function Choice({ name, word, value, known }) {
  const values = value && !known.includes(value) ? [value, ...known] : known;
  if (!value && values.length < 2) return null;
  return html`<label>
    <span class="sr">${word}</span>
    <select value=${value} class=${value ? "set" : ""} onChange=${(event) => open(here({ [name]: event.target.value }))}>
      <option value="">${word}: all</option>
      ${values.map((each) => html`<option value=${each} selected=${each === value}>${each}</option>`)}
    </select>
  </label>`;
}
