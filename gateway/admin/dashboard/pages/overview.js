// Where the prompt tokens went, why, and what to change first.

import { html } from "../vendor/ui.js";
import { WINDOW_WORDS, brief, count, counted, seconds } from "../core/format.js";
import { useAsked, useTitle } from "../core/use.js";
import { Asked } from "../parts/states.js";
import { Canonical } from "./overview/canonical.js";
import { Experiment } from "./overview/experiment.js";
import { FixFirst } from "./overview/fix_first.js";
import { Applications, Group } from "./overview/groups.js";
import { Headline } from "./overview/headline.js";
import { Nothing } from "./overview/nothing.js";
import { PromptFindings } from "./overview/prompt_findings.js";
import { Reasons } from "./overview/reasons.js";
import { Turns } from "./overview/turns.js";
import { Waterfall } from "./overview/waterfall.js";

const BY = ["reason", "model", "tenant", "source", "template", "prompt"];

export function Overview({ at }) {
  useTitle("Overview");
  const by = BY.includes(at.query.get("by")) ? at.query.get("by") : "reason";
  const asked = { window: at.window, ...at.filters };
  const summary = useAsked("summary", asked);
  const experiment = useAsked("experiment", { model: at.filters.model }, 30);
  const replicas = useAsked("replicas", {});
  const series = useAsked("reasons", { ...asked, by: by === "reason" ? null : by });
  return html`
    <h1 tabindex="-1">Where prompt tokens went</h1>
    <${PromptFindings} replicas=${replicas.value?.replicas ?? []} />
    <${Asked} asked=${summary} what="the figures">
      ${(value) =>
        value.requests === 0
          ? html`<${Nothing} at=${at} summary=${value} />`
          : html`<${Page} at=${at} summary=${value} series=${series} experiment=${experiment.value} by=${by} quiet=${Boolean(summary.problem)} />`}
    <//>
  `;
}

function Page({ at, summary, series, experiment, by, quiet }) {
  const steps = summary.ladder.slice(1).map((rung) => rung.rung);
  const step = steps.find((rung) => rung === at.query.get("step")) ?? null;
  const catalog = series.value?.catalog ?? [];
  return html`
    <p class="hint">${covered(summary)}${skipped(summary)}</p>
    <${Headline} summary=${summary} series=${series.value} />
    ${experiment?.running && html`<${Experiment} results=${experiment} currency=${summary.price.currency} />`}
    <${FixFirst} summary=${summary} />
    <${Canonical} summary=${summary} catalog=${catalog} />
    <${Asked} asked=${series} what="the reasons" quiet=${quiet}>
      ${(value) => html`
        <${Waterfall} summary=${summary} rungs=${value.rungs} step=${step} />
        <${Reasons} summary=${summary} series=${value} step=${step} by=${by} choices=${BY} />
        <${Applications} at=${at} summary=${summary} catalog=${value.catalog} />
      `}
    <//>
    <div class="grid">
      <${Group} at=${at} name="tenant" title="Tenants" summary=${summary} />
      <${Group} at=${at} name="model" title="Models" summary=${summary} />
      <${Group} at=${at} name="template" title="Template versions" summary=${summary} />
      ${summary.by_prompt.some((row) => row.prompt) &&
      html`<${Group} at=${at} name="prompt" title="Applications" summary=${summary} />`}
      <${Turns} turns=${summary.turns} />
    </div>
  `;
}

function covered({ window, covered_seconds, requests }) {
  const whole = { "15m": 900, "1h": 3600, "24h": 86400, "7d": 604800 }[window];
  const text = counted(requests, "request");
  // A window is up to one step shorter than its name says.
  if (covered_seconds > whole * 0.9) return `${text} in the last ${WINDOW_WORDS[window]}.`;
  // Also after the explaining process was lost: what it had counted is gone with it.
  const whence = `since counting began: there is no more of the last ${WINDOW_WORDS[window]} yet`;
  return `${text} in ${seconds(covered_seconds)}, ${whence}.`;
}

function skipped({ skipped, requests, avoidable }) {
  if (!skipped) return "";
  const left = ` ${count(skipped)} of ${count(requests)} requests were counted without their text: explaining was behind, or had used its share of the CPU time.`;
  if (!avoidable.estimated) return left;
  return `${left} If these miss for the same reasons as the others, ${brief(avoidable.estimated.tokens)} tokens of all were avoidable.`;
}
