// Where a request's time went, as one bar.

import { html } from "../../vendor/ui.js";
import { colour } from "../../core/colours.js";
import { percent, seconds } from "../../core/format.js";
import { ChartBox } from "../../parts/chart.js";

const STAGES = { canon: "reading the prompt", encode: "making tokens", hash: "naming blocks", place: "choosing a replica",
  queue: "waiting for a replica that has time" };
/** Of the stages: none that looks like what follows at the replica. */
const STAGE_COLOURS = ["group-0", "group-4", "group-6", "group-3"];

/** @param {{timings: object}} props as `GET requests/{id}` has it */
export function Timeline({ timings }) {
  const parts = partsOf(timings);
  const config = () => ({
    type: "bar",
    data: {
      labels: [""],
      datasets: parts.map((part) => ({ label: part.name, data: [part.took], backgroundColor: colour(part.colour), barThickness: 34 })),
    },
    options: {
      indexAxis: "y",
      scales: {
        x: { stacked: true, max: timings.seconds, ticks: { callback: (value) => seconds(value), maxRotation: 0, maxTicksLimit: 5 } },
        y: { stacked: true, display: false },
      },
      plugins: {
        legend: { display: false },
        tooltip: { callbacks: { title: () => "", label: (item) => `${item.dataset.label}: ${seconds(item.raw)}` } },
      },
    },
  });
  const share = (part) => percent(timings.seconds ? part.took / timings.seconds : null);
  return html`<${ChartBox}
      title="Where the time went"
      config=${config}
      drawn=${JSON.stringify(timings)}
      height=${86}
      table=${{ head: ["Part", "Time", "Of all"], rows: parts.map((part) => [part.name, seconds(part.took), share(part)]) }}
    />
    <ul class="parts">
      ${parts.map(
        (part) => html`<li>
          <i class="dot" style=${{ background: `var(--${part.colour})` }}></i><span>${part.name}</span><span
            class="amount">${seconds(part.took)}</span>
        </li>`,
      )}
    </ul>`;
}

/** What the whole time divides into, in order: [{name, took: seconds, colour}]. */
function partsOf({ stages, sent_after_seconds: sent, ttft_seconds: first, seconds: all }) {
  const own = Object.entries(stages).map(([stage, took], position) => ({
    name: `Gateway: ${STAGES[stage] ?? stage}`,
    took,
    colour: STAGE_COLOURS[position % STAGE_COLOURS.length],
  }));
  const named = own.reduce((sum, part) => sum + part.took, 0);
  const gateway = [...own, { name: "Gateway: all else before it was sent", took: Math.max((sent ?? all) - named, 0), colour: "muted" }];
  if (sent === null) return gateway;
  if (first === null) return [...gateway, { name: "At the replica, until the end", took: all - sent, colour: "hits" }];
  return [
    ...gateway,
    { name: "At the replica: queue and prefill, until the first byte", took: Math.max(first - sent, 0), colour: "anywhere" },
    { name: "At the replica: decoding, until the end", took: Math.max(all - first, 0), colour: "hits" },
  ];
}
