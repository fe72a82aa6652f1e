// What to change first: the causes that cost most, each with what mending it would bring, how, and who can.

import { html, useState } from "../../vendor/ui.js";
import { link } from "../../core/address.js";
import { counted } from "../../core/format.js";
import { Finding, findingKey } from "../../parts/finding.js";

const AT_ONCE = 4;
const WORTH_IT = 0.005;

export function FixFirst({ summary }) {
  const [all, showAll] = useState(false);
  // A finding without a fix is no advice; it comes last.
  const ranked = [...summary.findings].sort((one, other) => isIdle(one) - isIdle(other));
  const large = ranked.filter((finding) => finding.share >= WORTH_IT && !isIdle(finding)).length;
  const first = Math.max(Math.min(large, AT_ONCE), 1);
  const shown = all ? ranked : ranked.slice(0, first);
  return html`<section class="card" aria-labelledby="fix-first">
    <h2 id="fix-first">Fix this first</h2>
    ${ranked.length
      ? html`<ol class="fix">
          ${shown.map((finding) => html`<${Finding} key=${findingKey(finding)} finding=${finding} summary=${summary} />`)}
        </ol>`
      : html`<p>Nothing to fix: what was computed is new, or costs too little to be named.</p>`}
    ${ranked.length > first &&
    html`<p>
      <button class="quiet" aria-expanded=${all} onClick=${() => showAll(!all)}>
        ${all ? "Show the first ones only" : `Show ${ranked.length - first} smaller`}
      </button>
    </p>`}
    ${summary.families.length > 0 && html`<${Families} families=${summary.families} />`}
  </section>`;
}

const isIdle = (finding) => Number(finding.remedy === "nobody");

function Families({ families }) {
  return html`
    <h3>Clients of one application that send different prompts</h3>
    <p class="hint">Each variant needs a warm cache of its own. Build the prompt in one place, and all of them share one.</p>
    <ul class="plain">
      ${families.map(
        ({ source, than, tenant, model, requests, difference }) => html`<li>
          <span class="chip">${source}</span> against <span class="chip">${than}</span>: ${difference.said || "they differ"}
          <span class="hint below">
            ${difference.path && html`At <code>${difference.path}</code>. `}
            ${counted(requests, "request")} of ${tenant} to ${model} in the last hour.
          </span>
          <span class="links">
            <a href=${link([], { source, tenant, model })}>All of ${source}</a>
            <a href=${link([], { source: than, tenant, model })}>All of ${than}</a>
          </span>
          ${(difference.before || difference.after) &&
          html`<details>
            <summary>What differs</summary>
            <div class="sides">
              <section><h4>${than}</h4><pre class="window">${difference.before || "–"}</pre></section>
              <section><h4>${source}</h4><pre class="window">${difference.after || "–"}</pre></section>
            </div>
          </details>`}
        </li>`,
      )}
    </ul>
  `;
}
