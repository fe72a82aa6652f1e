// Hit rate by the turn of the conversation: where it falls, something in the history changes.

import { html } from "../../vendor/ui.js";
import { colour } from "../../core/colours.js";
import { count, percent } from "../../core/format.js";
import { ChartBox } from "../../parts/chart.js";

export function Turns({ turns }) {
  return html`<section class="card span-6" aria-label="Turns">
    <${ChartBox}
      heading
      title="Hit rate by turn of the conversation"
      note="A conversation grows with every turn, and so should its share from the cache. Where it falls, its history changes."
      height=${170}
      drawn=${JSON.stringify(turns)}
      config=${() => config(turns)}
      table=${{
        head: ["Turn", "Hit rate", "Prompt tokens", "From cache"],
        rows: turns.map((row) => [row.turn, percent(row.hit_rate), count(row.prompt_tokens), count(row.hits)]),
      }}
    />
  </section>`;
}

function config(turns) {
  const fill = colour("hits");
  return {
    type: "bar",
    data: {
      labels: turns.map((row) => row.turn),
      datasets: [{ data: turns.map((row) => row.hit_rate), backgroundColor: fill, hoverBackgroundColor: fill, maxBarThickness: 40 }],
    },
    options: {
      scales: {
        x: { grid: { display: false }, title: { display: true, text: "turn" } },
        y: { min: 0, max: 1, ticks: { callback: (share) => percent(share, 0), maxTicksLimit: 6 } },
      },
      plugins: {
        legend: { display: false },
        tooltip: {
          callbacks: {
            title: ([item]) => `Turn ${item.label}`,
            label: ({ dataIndex }) => ` ${percent(turns[dataIndex].hit_rate)} of ${count(turns[dataIndex].prompt_tokens)} tokens`,
          },
        },
      },
    },
  };
}
