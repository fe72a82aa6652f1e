// Hit rate, requests and losses of each source, tenant, model and template version. A name restricts the page to it.

import { html } from "../../vendor/ui.js";
import { here } from "../../core/address.js";
import { brief, count, gpu, money } from "../../core/format.js";
import { Meter } from "../../parts/meter.js";
import { ReasonName } from "../../parts/reason.js";

/** The client families, each with the reason that it could do most about. */
export function Applications({ at, summary, catalog }) {
  const texts = new Map(catalog.map((text) => [text.code, text]));
  const paid = summary.price.per_gpu_hour !== null;
  return html`<section class="card" aria-labelledby="sources">
    <h2 id="sources">Sources</h2>
    <p class="hint">Families of clients, by their <code>x-client</code> header, else by the product in <code>user-agent</code>.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Table of sources">
      <table>
        <thead>
          <tr>
            <th scope="col">Source</th>
            <th scope="col">Hit rate</th>
            <th scope="col" class="number roomy">Requests</th>
            <th scope="col" class="number roomy">Prompt tokens</th>
            <th scope="col" class="number roomy">GPU time lost</th>
            <th scope="col" class="number">Avoidable</th>
            ${paid && html`<th scope="col" class="number roomy">in money</th>`}
            <th scope="col">Mostly for</th>
          </tr>
        </thead>
        <tbody>
          ${summary.by_source.map((row) => {
            const code = mainReason(row, texts);
            return html`<tr key=${row.source}>
              <th scope="row"><${Name} at=${at} name="source" value=${row.source} /></th>
              <td><${Meter} share=${row.hit_rate} /></td>
              <td class="number roomy">${count(row.requests)}</td>
              <td class="number roomy" title=${count(row.prompt_tokens)}>${brief(row.prompt_tokens)}</td>
              <td class="number roomy">${gpu(row.lost.gpu_seconds)}</td>
              <td class="number">${gpu(row.avoidable.gpu_seconds)}</td>
              ${paid && html`<td class="number roomy">${money(row.avoidable.money, summary.price.currency)}</td>`}
              <td>
                ${code
                  ? html`<${ReasonName} ...${texts.get(code)} changes=${{ source: row.source }} />`
                  : html`<span class="hint">nothing avoidable</span>`}
              </td>
            </tr>`;
          })}
        </tbody>
      </table>
    </div>
  </section>`;
}

export function Group({ at, name, title, summary }) {
  const paid = summary.price.per_gpu_hour !== null;
  return html`<section class="card span-6" aria-labelledby=${`by-${name}`}>
    <h2 id=${`by-${name}`}>${title}</h2>
    <div class="scroll" tabindex="0" role="region" aria-label=${`Table: ${title}`}>
      <table>
        <thead>
          <tr>
            <th scope="col">Name</th>
            <th scope="col">Hit rate</th>
            <th scope="col" class="number roomy">Requests</th>
            <th scope="col" class="number">GPU time lost</th>
            ${paid && html`<th scope="col" class="number roomy">in money</th>`}
          </tr>
        </thead>
        <tbody>
          ${summary[`by_${name}`].map(
            (row) => html`<tr key=${row[name]}>
              <th scope="row"><${Name} at=${at} name=${name} value=${row[name]} /></th>
              <td><${Meter} share=${row.hit_rate} /></td>
              <td class="number roomy">${count(row.requests)}</td>
              <td class="number">${gpu(row.lost.gpu_seconds)}</td>
              ${paid && html`<td class="number roomy">${money(row.lost.money, summary.price.currency)}</td>`}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  </section>`;
}

function Name({ at, name, value }) {
  if (!value) return html`<span class="hint">(none)</span>`;
  if (at.filters[name] === value) return html`${value}${" "}<a class="off" href=${here({ [name]: null })}>show all</a>`;
  return html`<a href=${here({ [name]: value })} title=${`Only ${value}`}>${value}</a>`;
}

/** The reason with most tokens that can be fixed; undefined for none. */
function mainReason(row, texts) {
  return Object.entries(row.reasons)
    .filter(([code, tokens]) => tokens && texts.get(code).remedy !== "nobody")
    .sort(([, one], [, other]) => other - one)[0]?.[0];
}
