// The ladder of one request: what was reused, and at which step the rest was lost.

import { html } from "../../vendor/ui.js";
import { colour } from "../../core/colours.js";
import { brief, count, percent } from "../../core/format.js";
import { ChartBox } from "../../parts/chart.js";

/** @param {{ladder: object[], rungs: Map<string, object>}} props ladder: as `GET requests/{id}` has it */
export function Ladder({ ladder, rungs }) {
  const all = ladder.at(-1).tokens;
  const titles = ladder.map(({ rung }) => rungs.get(rung)?.title ?? rung);
  const config = () => ({
    type: "bar",
    data: {
      labels: titles,
      datasets: [
        {
          data: ladder.map(({ tokens, more }) => [tokens - more, tokens]),
          backgroundColor: ladder.map(({ rung }) => colour(rung === "confirmed" ? "hits" : rung)),
          barPercentage: 0.92,
          categoryPercentage: 0.92,
          minBarLength: 2,
        },
      ],
    },
    options: {
      indexAxis: "y",
      scales: { x: { min: 0, max: all, ticks: { callback: (value) => brief(value), maxRotation: 0 } }, y: { grid: { display: false } } },
      plugins: {
        legend: { display: false },
        tooltip: { callbacks: { label: ({ dataIndex }) => `${count(ladder[dataIndex].more)} tokens` } },
      },
    },
  });
  return html`<${ChartBox}
    title="Every prompt token once, from the first to the last"
    config=${config}
    drawn=${JSON.stringify([ladder, titles])}
    height=${270}
    table=${{
      head: ["Step", "Tokens", "Share", "Up to here", "That is what was"],
      rows: ladder.map(({ tokens, more, phrase }, step) => [titles[step], count(more), percent(all ? more / all : null), count(tokens), phrase]),
    }}
  />`;
}
