// Which of the hottest prefixes are warm where.

import { html } from "../../vendor/ui.js";
import { link } from "../../core/address.js";
import { ago, brief, count, percent } from "../../core/format.js";
import { useAsked } from "../../core/use.js";
import { Asked } from "../../parts/states.js";

const SHOWN = 20;
const LEVELS = 5;

/** @param {{replicas: object[]}} props as `GET replicas` has them */
export function HeatMap({ replicas }) {
  const asked = useAsked("prefixes", { limit: SHOWN });
  return html`<section class="card" aria-label="Hottest prefixes">
    <h2>What is warm where</h2>
    <${Asked} asked=${asked} what="prefixes">
      ${({ prefixes, half_life_seconds: halfLife }) =>
        prefixes.length
          ? html`<p class="hint">
                The prefixes asked for most, and how much of each a replica holds now. Requests count half after ${count(halfLife / 60)} minutes.
              </p>
              <div class="scroll whole" tabindex="0" role="region" aria-label="Hottest prefixes against replicas">
                <${Table} prefixes=${prefixes} replicas=${replicas} />
              </div>`
          : html`<p class="hint">No prefix was shared yet: it takes several requests that begin with the same blocks.</p>`}
    <//>
  </section>`;
}

function Table({ prefixes, replicas }) {
  const models = new Set(replicas.map((replica) => replica.model));
  return html`<table class="heat">
    <caption class="sr">Share of each prefix that each replica holds</caption>
    <thead>
      <tr>
        <th scope="col">Prefix, last asked for by</th>
        <th scope="col" class="number">Tokens</th>
        <th scope="col" class="number">Requests</th>
        <th scope="col" class="number roomy">Last used</th>
        ${replicas.map(({ id }) => html`<th scope="col" class="held" title=${id}><span class="cut">${id}</span></th>`)}
      </tr>
    </thead>
    <tbody>
      ${prefixes.map(
        (prefix) => html`<tr key=${prefix.id}>
          <th scope="row">
            ${prefix.example ? html`<a href=${link(["requests", prefix.example])}
              title="A request that begins with it">${prefix.source || "unnamed"}</a>` : prefix.source}
            <span class="hint">
              ${" "}${[models.size > 1 && prefix.model, prefix.tenant].filter(Boolean).join(" · ")} <code>${prefix.id.slice(0, 8)}</code>
            </span>
          </th>
          <td class="number">${count(prefix.tokens)}</td>
          <td class="number" title=${`${count(prefix.reused_tokens)} tokens of it were reused`}>${brief(prefix.requests)}</td>
          <td class="number roomy">${ago(prefix.last_used)}</td>
          ${replicas.map(({ id }) => html`<${Cell} held=${prefix.held[id]} of=${prefix.tokens} />`)}
        </tr>`,
      )}
    </tbody>
  </table>`;
}

function Cell({ held, of }) {
  if (held === undefined) return html`<td class="held" title="Does not serve this model, or is gone">·</td>`;
  const share = held / of;
  // Something is never shown as nothing, nor nearly all as all.
  const level = share >= 1 ? LEVELS : Math.min(Math.ceil(share * LEVELS), LEVELS - 1);
  return html`<td class=${`held level-${level}`} title=${`${count(held)} of ${count(of)} tokens`}>${held ? percent(share, 0) : "–"}</td>`;
}
