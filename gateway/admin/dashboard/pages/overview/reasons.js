// The reasons: over time and as a list, all of them or those of one step of the ladder.

import { html } from "../../vendor/ui.js";
import { here, link } from "../../core/address.js";
import { shade, shadeMark } from "../../core/colours.js";
import { count, gpu, money, percent } from "../../core/format.js";
import { OverTime, groupLayers } from "../../parts/over_time.js";
import { ReasonName } from "../../parts/reason.js";
import { Switch } from "../../parts/switch.js";

export function Reasons({ summary, series, step, by, choices }) {
  const texts = new Map(series.catalog.map((text) => [text.code, text]));
  const reasons = summary.reasons.filter((row) => row.tokens && (step === null || texts.get(row.code).rung === step));
  const title = series.rungs.find((rung) => rung.rung === step)?.title;
  // While another view is on its way, the one before stays.
  const grouped = Boolean(series.groups);
  return html`<section class="card" aria-labelledby="reasons">
    <div class="head">
      <h2 id="reasons">
        ${step
          ? html`Reasons: ${title}${" "}<a class="off" href=${here({ step: null })}>show all steps</a>`
          : "Why tokens were computed again"}
      </h2>
      <${Switch} label="Broken down by" name="by" value=${by} choices=${choices} />
    </div>
    ${grouped && step && html`<p class="hint">By ${series.by} the chart has all reasons; the list below has those of this step.</p>`}
    <${OverTime}
      title=${`Tokens computed again by ${series.by ?? "reason"}, and hit rate`}
      series=${series}
      of=${grouped ? "groups" : "reasons"}
      layers=${grouped ? groupLayers(series) : reasonLayers(series.catalog, reasons)}
    />
    <${List} reasons=${reasons} texts=${texts} currency=${summary.price.per_gpu_hour === null ? null : summary.price.currency} />
    <p class="hint">
      Whole blocks only: ${count(summary.rounding_tokens)} tokens (${percent(summary.rounding_tokens / summary.prompt_tokens)}) were
      lost to rounding. Answers sent back in another form than they were generated in: ${count(summary.rerendered_tokens)}
      ${" "}(${percent(summary.rerendered_tokens / summary.prompt_tokens)}).
    </p>
  </section>`;
}

/** In the catalog's order, so that the steps lie on each other as they do in the ladder, and nothing jumps. */
function reasonLayers(catalog, reasons) {
  const present = new Set(reasons.map((row) => row.code));
  const texts = catalog.filter((text) => present.has(text.code));
  return texts.map(({ code, title, rung }) => {
    const siblings = texts.filter((each) => each.rung === rung);
    const place = siblings.findIndex((each) => each.code === code);
    return {
      name: code,
      title,
      fill: () => shade(rung, place, siblings.length),
      mark: shadeMark(rung, place, siblings.length),
      href: link(["reasons", code]),
    };
  });
}

function List({ reasons, texts, currency }) {
  if (!reasons.length) return html`<p>Nothing was computed again for this step.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Table of reasons">
    <table>
      <thead>
        <tr>
          <th scope="col">Reason</th>
          <th scope="col" class="number">Tokens</th>
          <th scope="col" class="number">Of all</th>
          <th scope="col" class="number roomy">GPU time</th>
          ${currency && html`<th scope="col" class="number roomy">Money</th>`}
          <th scope="col" class="wide roomy">What to do</th>
        </tr>
      </thead>
      <tbody>
        ${reasons.map(
          (row) => html`<tr key=${row.code}>
            <th scope="row"><${ReasonName} code=${row.code} title=${row.title} rung=${texts.get(row.code).rung} /></th>
            <td class="number">${count(row.tokens)}</td>
            <td class="number">${percent(row.share)}</td>
            <td class="number roomy">${gpu(row.gpu_seconds)}</td>
            ${currency && html`<td class="number roomy">${money(row.money, currency)}</td>`}
            <td class="wide roomy hint">${row.advice}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}
