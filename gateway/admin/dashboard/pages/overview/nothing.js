// No requests: what to do, so that there are some.

import { html } from "../../vendor/ui.js";
import { FILTERS, here } from "../../core/address.js";
import { WINDOW_WORDS } from "../../core/format.js";
import { Empty } from "../../parts/states.js";

export function Nothing({ at, summary }) {
  const set = FILTERS.filter((name) => at.filters[name]);
  const longer = at.window !== "7d" && html`<a href=${here({ window: "7d" })}>Look at 7 days</a>`;
  if (set.length) {
    return html`<${Empty} title=${`No requests in the last ${WINDOW_WORDS[summary.window]} with these filters`}>
      <p>${set.map((name) => html`${name} <span class="chip">${at.filters[name]}</span> `)}</p>
      <p class="links">
        <a href=${here(Object.fromEntries(FILTERS.map((name) => [name, null])))}>Take the filters off</a>
        ${longer}
      </p>
    <//>`;
  }
  return html`<${Empty} title=${`No requests in the last ${WINDOW_WORDS[summary.window]}`}>
    <p>Point an application's <code>base_url</code> at the gateway's public port (<code>server.port</code> of its configuration):</p>
    <pre class="window">client = OpenAI(base_url="http://<i>gateway</i>:<i>port</i>/v1", api_key=…)</pre>
    <p>Nothing else changes. A second after its first answer, figures stand here; the README shows it step by step, and
      ${" "}<code>docs/explain.md</code> how to read them.</p>
    <p class="links">${longer}</p>
  <//>`;
}
