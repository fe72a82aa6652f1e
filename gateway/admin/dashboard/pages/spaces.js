// Prefix spaces: who shares cached prefixes with whom, for how long, and ending that at once.

import { html, useState } from "../vendor/ui.js";
import { here } from "../core/address.js";
import { clock, count } from "../core/format.js";
import { useAsked, useTitle } from "../core/use.js";
import { Asked, Empty } from "../parts/states.js";
import { ResetDialog } from "./spaces/reset.js";
import { SpaceFilters } from "./spaces/filters.js";
import { SpaceTable } from "./spaces/table.js";

const SHOWN = 200;

export function Spaces({ at, me }) {
  useTitle("Spaces");
  const { model, tenant } = at.filters;
  const state = ["alive", "ended"].includes(at.query.get("state")) ? at.query.get("state") : "";
  const asked = useAsked("spaces", { model, tenant, state, limit: SHOWN });
  const config = useAsked("config", {}, 60).value;
  const [chosen, choose] = useState(null);
  const [done, setDone] = useState(null);
  const resets = me?.role === "operate" ? choose : null;
  const finish = (answer) => {
    setDone({ answer, at: Date.now() / 1000 });
    asked.refresh();
  };
  return html`
    <div class="titled">
      <h1 tabindex="-1">Prefix spaces</h1>
      <${SpaceFilters} state=${state} filters=${at.filters} config=${config} spaces=${asked.value?.spaces ?? []} />
    </div>
    <p class="hint">
      A cached prefix is reused only within its space: same model, template, tenant and scope. A reset makes everything cached in a
      space unreachable at once, on every replica.
      ${me?.role === "read" && html` This token may only look: a reset needs the role <code>operate</code>.`}
    </p>
    <div role="status">${done && html`<${Done} done=${done} onClose=${() => setDone(null)} />`}</div>
    <${Asked} asked=${asked} what="spaces">
      ${({ spaces, more }) =>
        spaces.length
          ? html`<section class="card" aria-label="Spaces">
              <${SpaceTable} spaces=${spaces} onReset=${resets} />
              ${more && html`<p class="hint">These are the ${count(spaces.length)} used last; filter by model, tenant or state to see others.</p>`}
            </section>`
          : html`<${Nothing} narrowed=${Boolean(model || tenant || state)} />`}
    <//>
    ${chosen &&
    html`<${ResetDialog}
      space=${chosen}
      listed=${asked.value?.spaces ?? []}
      more=${asked.value?.more ?? false}
      tenants=${config?.tenants ?? []}
      onDone=${finish}
      onClose=${() => choose(null)}
    />`}
  `;
}

function Done({ done, onClose }) {
  const { reset, spaces } = done.answer;
  const ids = spaces.map((space) => space.id).join(", ");
  return html`<div class="done">
    <span>
      <strong>${reset === 1 ? "1 space was reset" : `${count(reset)} spaces were reset`}</strong> at ${clock(done.at)}${ids && `: ${ids}`}.
      ${reset > 0 ? " Nothing that was cached there is used again; new requests begin anew." : " All selected spaces had ended meanwhile."}
    </span>
    <button class="quiet" onClick=${onClose}>Close</button>
  </div>`;
}

function Nothing({ narrowed }) {
  if (narrowed) {
    return html`<${Empty} title="No such spaces">
      <p>None passes all filters. <a href=${here({ model: null, tenant: null, state: null })}>Show all spaces</a></p>
    <//>`;
  }
  return html`<${Empty} title="No spaces yet"><p>A space begins with the first request of its tenant, model and scope.</p><//>`;
}
