// The ladder: from all prompt tokens down to those that were served from cache, a step for each group of reasons. A
// step can be chosen; the reasons below are then only its.

import { html } from "../../vendor/ui.js";
import { here, open } from "../../core/address.js";
import { colour } from "../../core/colours.js";
import { brief, count, percent } from "../../core/format.js";
import { ChartBox } from "../../parts/chart.js";

const ROW = 34;
const AXIS = 26;

export function Waterfall({ summary, rungs, step }) {
  const bars = barsOf(summary, rungs);
  const total = summary.prompt_tokens;
  return html`<section class="card" aria-label="The ladder">
    <${ChartBox}
      heading
      title="From all prompt tokens to those served from cache"
      note="Each step is what was computed again for one group of reasons. Choose one to see only its reasons below."
      height=${bars.length * ROW + AXIS}
      drawn=${JSON.stringify([bars, step])}
      config=${() => config(bars, total, step)}
      table=${{
        head: ["Step", "Tokens", "Of all", "Left after it"],
        rows: bars.map(({ title, from, to, left }) => [title, count(to - from), percent((to - from) / total), count(left)]),
      }}
      beside=${html`<ul class="steps" style=${{ gridAutoRows: `${ROW}px` }}>
        ${bars.map((bar) => html`<${Step} key=${bar.rung} bar=${bar} total=${total} chosen=${bar.rung === step} />`)}
      </ul>`}
    />
  </section>`;
}

function Step({ bar, total, chosen }) {
  const tokens = bar.to - bar.from;
  const name = html`<i class=${`dot ${bar.rung}`}></i>${bar.title}`;
  const canBeChosen = bar.isStep && (tokens || chosen);
  return html`<li class=${chosen ? "chosen" : tokens ? "" : "none"} title=${bar.meaning}>
    ${canBeChosen
      ? html`<a href=${toggled(bar.rung, chosen)} aria-current=${chosen ? "true" : null}>${name}</a>`
      : html`<span>${name}</span>`}
    <span class="amount">${bar.isStep && tokens ? "−" : ""}${brief(tokens)}</span>
    <span class="amount part">${percent(tokens / total)}</span>
  </li>`;
}

const toggled = (rung, chosen) => here({ step: chosen ? null : rung });

/** Top down: everything, what each step takes away, and what is left. */
function barsOf({ ladder, prompt_tokens }, rungs) {
  const meaning = Object.fromEntries(rungs.map((rung) => [rung.rung, rung.meaning]));
  const steps = ladder.map((rung) => ({
    rung: rung.rung,
    title: rung.title,
    meaning: meaning[rung.rung],
    from: rung.tokens - rung.more,
    to: rung.tokens,
    left: rung.tokens - rung.more,
    isStep: true,
  }));
  const [served, ...missed] = steps;
  const all = { rung: "all", title: "All prompt tokens", meaning: "", from: 0, to: prompt_tokens };
  return [
    { ...all, left: prompt_tokens, isStep: false },
    ...missed.reverse(),
    { ...served, left: served.to, isStep: false },
  ];
}

function config(bars, total, step) {
  const fill = bars.map((bar) => {
    const own = bar.rung === "all" ? colour("muted") : colour(bar.rung === "confirmed" ? "hits" : bar.rung);
    return step === null || bar.rung === step ? own : `color-mix(in srgb, ${own} 35%, ${colour("surface")})`;
  });
  const choose = (_event, [hit]) => {
    const bar = bars[hit?.index];
    if (bar?.isStep) open(toggled(bar.rung, bar.rung === step));
  };
  return {
    type: "bar",
    data: {
      labels: bars.map((bar) => bar.title),
      datasets: [
        {
          data: bars.map((bar) => (bar.to > bar.from ? [bar.from, bar.to] : null)),
          backgroundColor: fill,
          hoverBackgroundColor: fill,
          barPercentage: 0.72,
          categoryPercentage: 1,
          minBarLength: 2,
        },
      ],
    },
    options: {
      indexAxis: "y",
      layout: { padding: { right: 12 } },
      interaction: { mode: "nearest", axis: "y", intersect: false },
      onClick: choose,
      onHover: (event, [hit]) => (event.native.target.style.cursor = bars[hit?.index]?.isStep ? "pointer" : "default"),
      scales: {
        y: { display: false },
        x: {
          min: 0,
          max: total,
          afterFit: (axis) => (axis.height = AXIS),
          ticks: { callback: brief, maxTicksLimit: 7, maxRotation: 0 },
        },
      },
      plugins: {
        legend: { display: false },
        tooltip: {
          callbacks: {
            label: ({ dataIndex }) => {
              const { from, to } = bars[dataIndex];
              return ` ${count(to - from)} tokens, ${percent((to - from) / total)}`;
            },
          },
        },
      },
    },
  };
}
