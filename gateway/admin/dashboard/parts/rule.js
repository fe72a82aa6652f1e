// One rule of canonicalization: what turning it on would bring, or what it brings now, in figures and in words.

import { html } from "../vendor/ui.js";
import { ALL, effectOf, linesFor, observed, ownLine, wordsOf } from "../core/canon.js";
import { count, counted, gained, gpu, money, points } from "../core/format.js";
import { CopyLines } from "./copy.js";

/**
 * @param {object} props
 * @param {object} props.row one of the summary's `canonicalization.rules`
 * @param {object} props.summary
 * @param {boolean} [props.open] the lines for the configuration are shown at once, if the rule would save anything
 */
export function Rule({ row, summary, open = false }) {
  const { does, mind } = wordsOf(row.rule);
  const isOn = row.mode === "apply";
  const effect = effectOf(row);
  const costs = effect === "costs";
  const { named, costly } = meant(row, summary);
  return html`<li>
    <h3><${Headline} row=${row} /></h3>
    <p>${does}${mind && ` ${mind}`}</p>
    <p class="hint"><${Worth} row=${row} summary=${summary} /></p>
    ${!isOn && !costs && html`<${TurnOn} rules=${named} summary=${summary} open=${open && effect === "saves"}>${costly && leftOut(costly)}<//>`}
    ${isOn && costs && html`<${Lines} title="How to turn it off, and go on observing it" rules=${[row.rule]} mode="observe" />`}
  </li>`;
}

/** The lines that turn rules on, ready to copy. */
export function TurnOn({ rules, summary, open = false, children }) {
  const { tenant, model } = summary;
  const whose = tenant ? ["tenants", tenant] : model ? ["models", model] : null;
  return html`<${Lines} title=${`How to turn ${rules.length > 1 ? "them" : "it"} on`} rules=${rules} open=${open}>
    ${whose &&
    html`<p class="hint">
      These lines are for everybody, the figures for <span class="chip">${whose[1]}</span> only. To begin with that one, write
      ${" "}<code>${ownLine(rules)}</code> into its entry of <code>${whose[0]}</code>.
    </p>`}
    ${children}
  <//>`;
}

function Lines({ title, rules, mode = "apply", open = false, children }) {
  return html`<details open=${open}>
    <summary>${title}</summary>
    <${CopyLines} name=${`lines for ${rules.join(", ")}`} text=${linesFor(rules, mode)} />
    <p class="hint">For the gateway's configuration; it takes effect within seconds, without a restart.</p>
    ${children}
  </details>`;
}

function Headline({ row }) {
  const isOn = row.mode === "apply";
  const name = row.rule === ALL ? "all observed rules together" : html`<code>${row.rule}</code>`;
  const share = Math.abs(row.points) / 100;
  const effect = effectOf(row);
  if (effect === "costs") return html`<span class="badge bad">warning</span> ${name} <${Warning} isOn=${isOn} costs=${points(share)} />`;
  if (effect === "none") return html`${name} ${isOn ? "is on, and makes next to no difference now" : "would make next to no difference"}`;
  if (isOn) return html`${name} is on: <span class="good">saves ${points(share)} now</span>`;
  return html`Turn ${name} on: <span class="good">${gained(share)}</span> hit rate`;
}

function Warning({ isOn, costs }) {
  if (isOn) return html`is on, and <span class="bad">costs ${costs} now</span>: turn it off`;
  return html`<span class="bad">costs ${costs}</span>: leave it off`;
}

function Worth({ row, summary }) {
  const { requests, saved_tokens: saved, lost_tokens: lost, net_tokens: net, points_interval: between, gpu_seconds: worth, cost } = row;
  const { looked_at: looked } = summary.canonicalization;
  const parts = [
    net >= 0 ? `${count(net)} prompt tokens not computed again` : `${count(-net)} prompt tokens more to compute`,
    lost > 0 && saved > 0 && `${count(saved)} saved, ${count(lost)} lost`,
    between && `between ${tenths(between.low)} and ${tenths(between.high)} points, with 95 % confidence`,
    net !== 0 && `${gpu(Math.abs(worth))} of GPU time`,
    net !== 0 && cost !== null && money(Math.abs(cost), summary.price.currency),
    `changes ${count(requests)} of ${counted(looked.requests, "request")}`,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** Points with one decimal, and never minus zero. */
const tenths = (points) => (Math.round(points * 10) / 10 || 0).toFixed(1);

/** The rules that a row is about; of all together those are named apart that cost more than they save. */
function meant({ rule }, { canonicalization: { rules } }) {
  if (rule !== ALL) return { named: [rule], costly: "" };
  const costs = observed(rules).filter((row) => effectOf(row) === "costs");
  const others = observed(rules).filter((row) => !costs.includes(row));
  return { named: others.map((row) => row.rule), costly: costs.map((row) => row.rule).join(", ") };
}

const leftOut = (costly) => html`<p class="hint">
  Left out is what costs more than it saves by itself: <code>${costly}</code>. The figure is with it.
</p>`;
