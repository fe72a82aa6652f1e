// One cause that costs: where it is, what mending it would bring, how, and who can.

import { html } from "../vendor/ui.js";
import { link } from "../core/address.js";
import { counted, gpu, money, points } from "../core/format.js";
import { Remedy } from "./reason.js";

/**
 * @param {object} props
 * @param {object} props.finding one of the summary's `findings`
 * @param {{currency: string}} props.price the summary's
 * @param {boolean} [props.ofReason] it stands on its reason's own page
 */
export function Finding({ finding, price, ofReason = false }) {
  const { reason, title, source, model, tenant, template, example, said } = finding;
  const whose = { source, model, tenant, template };
  return html`<li>
    <p class="gain">
      <strong>${points(finding.share)}</strong>
      <span>more hit rate, at most</span>
      ${finding.gpu_seconds_per_day !== null && html`<span>${gpu(finding.gpu_seconds_per_day)} of GPU time a day</span>`}
      ${finding.money_per_day !== null && html`<span>${money(finding.money_per_day, price.currency)} a day</span>`}
    </p>
    <div class="what">
      <p><span class="chip" title="Source: the client family">${source}</span> <strong>${finding.sentence}</strong></p>
      ${said && html`<p><b>What happens:</b> ${said}</p>`}
      <p><b>What to do:</b> ${finding.advice}</p>
      <p class="hint">
        To be mended by <${Remedy} remedy=${finding.remedy} />. ${counted(finding.requests, "request")} of ${tenant} to
        ${" "}${model}${template && `, template ${template}`}.
      </p>
      <p class="links">
        ${!ofReason && html`<a href=${link(["reasons", reason], whose)}>${title}: examples</a>`}
        ${example && html`<a href=${link(["requests", example])}>One such request</a>`}
        <a href=${link([], whose)}>All of ${source}</a>
      </p>
    </div>
  </li>`;
}

/** What tells it from all others. */
export const findingKey = ({ model, tenant, source, template, reason, detail, path, line }) =>
  JSON.stringify([model, tenant, source, template, reason, detail, path, line]);
