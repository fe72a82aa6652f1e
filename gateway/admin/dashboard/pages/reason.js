// One reason: what it means, what it costs, where it comes from, and examples.

import { html } from "../vendor/ui.js";
import { here, link } from "../core/address.js";
import { count, gpu, money, percent, points } from "../core/format.js";
import { useAsked, useTitle } from "../core/use.js";
import { Figure, Figures } from "../parts/figure.js";
import { Finding, findingKey } from "../parts/finding.js";
import { OverTime, groupLayers } from "../parts/over_time.js";
import { Remedy } from "../parts/reason.js";
import { Asked, Empty } from "../parts/states.js";
import { Switch } from "../parts/switch.js";
import { Canonical } from "./reason/canonical.js";
import { Examples } from "./reason/examples.js";
import { Shares } from "./reason/shares.js";

const BY = ["source", "template", "tenant", "model", "prompt"];

export function ReasonPage({ at, code }) {
  const by = BY.includes(at.query.get("by")) ? at.query.get("by") : BY[0];
  const asked = { window: at.window, ...at.filters };
  const series = useAsked("reasons", { ...asked, reason: code, by });
  const summary = useAsked("summary", asked);
  const text = series.value?.catalog.find((each) => each.code === code);
  useTitle(text?.title ?? code);
  if (series.problem?.param === "reason") return html`<${Unknown} code=${code} />`;
  return html`
    <p class="hint back"><a href=${link([])}>Overview</a> › Reasons</p>
    <h1 tabindex="-1">${text?.title ?? code}</h1>
    <${Asked} asked=${series} what="the reason">
      ${(value) => html`
        <${About} text=${text} rungs=${value.rungs} />
        <${Asked} asked=${summary} what="its figures" quiet=${Boolean(series.problem)}>
          ${(figures) => html`
            <${Costs} at=${at} summary=${figures} series=${value} text=${text} by=${by} />
            <${Canonical} summary=${figures} text=${text} />
          `}
        <//>
        <${Examples} at=${at} text=${text} quiet=${Boolean(series.problem)} />
      `}
    <//>
  `;
}

function Unknown({ code }) {
  useTitle("Unknown reason");
  return html`<h1 tabindex="-1">Unknown reason</h1>
    <${Empty} title=${`There is no reason “${code}”`}>
      <p>Reasons have fixed names, such as <code>dynamic_time</code>; docs/reference/reasons.md has all of them.</p>
      <p><a href=${link([])}>The overview shows those that cost tokens now.</a></p>
    <//>`;
}

function About({ text, rungs }) {
  const step = rungs.find((rung) => rung.rung === text.rung);
  return html`<section class="card about" aria-label="What it is">
    <div>
      <h2>What happened</h2>
      <p>${text.meaning}</p>
      <p class="hint">
        <i class=${`dot ${text.rung}`}></i>A reason of the step <a href=${link([], { step: text.rung })}>${step.title}</a>; in metrics and
        the API it is <code>${text.code}</code>.
      </p>
    </div>
    <div>
      <h2>What to do</h2>
      <p>${text.advice}</p>
      <p class="hint">Fix: <${Remedy} remedy=${text.remedy} /></p>
    </div>
  </section>`;
}

function Costs({ at, summary, series, text, by }) {
  const row = summary.reasons.find((each) => each.code === text.code);
  if (!row?.tokens) {
    return html`<${Empty} title="Nothing was computed again for this reason">
      <p>Not in this window${Object.keys(at.filters).length ? ", with these filters" : ""}.</p>
      ${at.window !== "7d" && html`<p><a href=${here({ window: "7d" })}>Look at 7 days</a></p>`}
    <//>`;
  }
  const { currency, per_gpu_hour } = summary.price;
  const tokens = row.tokens;
  const findings = summary.findings.filter((each) => each.reason === text.code);
  return html`
    <section class="card" aria-label="What it costs">
      <${Figures}>
        <${Figure}
          name="Tokens computed again"
          value=${count(tokens)}
          note=${`of ${count(summary.prompt_tokens)} prompt tokens`}
        />
        <${Figure}
          name="Of all prompt tokens"
          value=${percent(row.share)}
          note=${`without it, up to ${points(row.share)} more hit rate`}
        />
        <${Figure} name="GPU time" value=${gpu(row.gpu_seconds)} note=${`of ${gpu(summary.lost.gpu_seconds)} lost in all`} />
        ${per_gpu_hour !== null &&
        html`<${Figure} name="Money" value=${money(row.money, currency)} note=${`at ${money(per_gpu_hour, currency)} a GPU hour`} />`}
      <//>
    </section>
    ${findings.length > 0 &&
    html`<section class="card" aria-labelledby="places">
      <h2 id="places">Where it comes from</h2>
      <ol class="fix">
        ${findings.map((each) => html`<${Finding} key=${findingKey(each)} finding=${each} summary=${summary} ofReason />`)}
      </ol>
    </section>`}
    <section class="card" aria-labelledby="over-time">
      <div class="head">
        <h2 id="over-time">Over time</h2>
        <${Switch} label="Broken down by" name="by" value=${by} choices=${BY} />
      </div>
      <${OverTime}
        title=${`Tokens computed again for this reason by ${series.by}, and hit rate`}
        series=${series}
        of="groups"
        layers=${groupLayers(series)}
      />
    </section>
    <div class="grid">
      <${Shares} at=${at} name="source" title="By source" rows=${summary.by_source} code=${text.code} tokens=${tokens} />
      <${Shares} at=${at} name="template" title="By template version" rows=${summary.by_template} code=${text.code} tokens=${tokens} />
    </div>
  `;
}
