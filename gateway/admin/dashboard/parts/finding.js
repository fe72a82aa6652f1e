// One cause that costs: where it is, what fixing it would bring, how, and where.

import { html } from "../vendor/ui.js";
import { link } from "../core/address.js";
import { NEEDS_SLOT, effectOf, mostOf } from "../core/canon.js";
import { count, counted, gained, gpu, money, points } from "../core/format.js";
import { Remedy } from "./reason.js";

/**
 * @param {object} props
 * @param {object} props.finding one of the summary's `findings`
 * @param {object} props.summary
 * @param {boolean} [props.ofReason] it stands on its reason's own page
 */
export function Finding({ finding, summary, ofReason = false }) {
  const { reason, title, source, model, tenant, template, prompt, example, said } = finding;
  const whose = { source, model, tenant, template, prompt };
  return html`<li>
    <p class="gain">
      <strong>${points(finding.share)}</strong>
      <span>more hit rate, at most</span>
      ${finding.gpu_seconds_per_day !== null && html`<span>${gpu(finding.gpu_seconds_per_day)} of GPU time a day</span>`}
      ${finding.money_per_day !== null && html`<span>${money(finding.money_per_day, summary.price.currency)} a day</span>`}
    </p>
    <div class="what">
      <p><span class="chip" title="Source: the client family">${source}</span> <strong>${finding.sentence}</strong></p>
      ${said && html`<p><b>What happens:</b> ${said}</p>`}
      <p><b>What to do:</b> ${finding.advice}</p>
      ${finding.hint && html`<p><b>What it brings:</b> ${finding.hint.gain}</p>`}
      <${InTheGateway} finding=${finding} canonicalization=${summary.canonicalization} />
      <p class="hint">
        Fix: <${Remedy} remedy=${finding.remedy} />. ${counted(finding.requests, "request")} of ${tenant} to
        ${" "}${model}${template && `, template ${template}`}${prompt && `, application ${prompt}`}.
      </p>
      <p class="links">
        ${!ofReason && html`<a href=${link(["reasons", reason], whose)}>${title}: examples</a>`}
        ${example && html`<a href=${link(["requests", example])}>One such request</a>`}
        <a href=${link([], whose)}>All of ${source}</a>
      </p>
    </div>
  </li>`;
}

/** What of it the gateway could fix by itself, or fixes already. */
function InTheGateway({ finding, canonicalization: { rules: rows, suggestions } }) {
  // A hint has a remedy of its own, which no rule can apply.
  if (finding.hint) return null;
  const { rules } = finding;
  const slot = suggestions.find((each) => ["reason", "model", "tenant", "source"].every((name) => each[name] === finding[name]));
  const byItself = !slot && !NEEDS_SLOT.has(finding.reason);
  const most = byItself && mostOf(rows, rules);
  const on = byItself && rows.find((row) => row.mode === "apply" && effectOf(row) === "saves" && rules.includes(row.rule));
  if (!most && !on && !slot) return null;
  return html`<p>
    <b>In the gateway:</b>${" "}
    ${most && html`<a href="#canonicalization">turn <code>${most.rule}</code> on</a>, ${gained(most.points / 100)} with everything that it fixes. `}
    ${on && html`<a href="#canonicalization"><code>${on.rule}</code> is on</a>, and saves ${points(on.points / 100)} in all. `}
    ${slot && html`<a href="#canonicalization">Declare the slot <code>${slot.name}</code></a>, ${count(slot.tokens)} tokens at most.`}
  </p>`;
}

/** What distinguishes it from all others. */
export const findingKey = ({ model, tenant, source, template, prompt, reason, detail, path, line }) =>
  JSON.stringify([model, tenant, source, template, prompt, reason, detail, path, line]);
