// Tokens that had to be computed, over time: one bar for each stretch, stacked by what they are broken down by, and the
// hit rate as a line over it.

import { html } from "../vendor/ui.js";
import { here } from "../core/address.js";
import { columnsOf, narrow } from "../core/columns.js";
import { colour, group, groupMark } from "../core/colours.js";
import { brief, clock, count, moment, percent } from "../core/format.js";
import { ChartBox } from "./chart.js";

/**
 * @typedef {object} Layer
 * @property {string} name what it is in the columns
 * @property {string} title
 * @property {() => string} fill its colour on the canvas
 * @property {string} mark the same colour, as a style
 * @property {string|null} href where its name leads
 *
 * @param {object} props
 * @param {string} props.title
 * @param {object} props.series as `GET reasons` answers
 * @param {"reasons"|"groups"} props.of what of a column the layers are
 * @param {Layer[]} props.layers from the bottom up
 */
export function OverTime({ title, series, of, layers, height = 280 }) {
  const { width, columns } = columnsOf(series);
  const time = width < 300 ? clock : moment;
  const labels = columns.map((column) => time(column.start));
  const rates = columns.map((column) => (column.prompt_tokens ? column.hits / column.prompt_tokens : null));
  const marks = markedColumns(series.markers ?? [], columns);
  const amounts = layers.map((layer) => columns.map((column) => column[of][layer.name] ?? 0));
  return html`
    <${ChartBox}
      title=${title}
      height=${height}
      drawn=${JSON.stringify([labels, rates, amounts, layers.map((layer) => layer.title), [...marks.keys()]])}
      config=${() => config(labels, rates, amounts, layers, marks)}
      table=${{
        head: ["From", "Hit rate", "Prompt tokens", ...layers.map((layer) => layer.title)],
        rows: columns.map((column, at) => [
          labels[at],
          percent(rates[at]),
          count(column.prompt_tokens),
          ...amounts.map((each) => count(each[at])),
        ]),
      }}
    />
    <ul class="legend">
      ${layers.map(
        (layer) =>
          html`<li key=${layer.name}>
            <i class="dot" style=${{ background: layer.mark }}></i>${layer.href
              ? html`<a href=${layer.href}>${layer.title}</a>`
              : layer.title}
          </li>`,
      )}
      <li><i class="stroke"></i>Hit rate</li>
      ${marks.size > 0 && html`<li><i class="mark"></i>Something changed</li>`}
    </ul>
    <${Changes} markers=${series.markers ?? []} />
  `;
}

/** Layers of a series broken down `by` models, tenants, sources or templates. */
export function groupLayers(series) {
  const missing = new Set();
  // Buckets have none while nothing was sent.
  for (const { groups = {} } of series.buckets) {
    for (const [name, sums] of Object.entries(groups)) if (sums.missed) missing.add(name);
  }
  const layers = series.groups.map((name, at) => ({
    name,
    title: name || "(none)",
    fill: () => group(at),
    mark: groupMark(at),
    href: name && name !== "(other)" ? here({ [series.by]: name }) : null,
  }));
  return layers.filter((layer) => missing.has(layer.name));
}

const KINDS = {
  started: "Gateway started",
  reloaded: "Configuration applied",
  template_changed: "Template changed",
  model_changed: "Model changed",
  prompt_version_changed: "New version of a prompt",
  prompt_text_edited: "Text of a prompt edited",
  reset: "Prefix spaces reset",
};
const SHOWN_CHANGES = 8;

/** What happened in the window, newest first: a change of the hit rate often begins with one of these. */
function Changes({ markers }) {
  if (markers.length === 0) return null;
  const newest = markers.slice(-SHOWN_CHANGES).reverse();
  const more = markers.length - newest.length;
  return html`<ul class="changes" aria-label="What changed in this time">
    ${newest.map(
      ({ at, kind, text }) =>
        html`<li key=${`${at}${kind}`}><time>${moment(at)}</time> <strong>${KINDS[kind] ?? kind}</strong>${text ? `: ${text}` : ""}</li>`,
    )}
    ${more > 0 && html`<li class="hint">and ${more} more before</li>`}
  </ul>`;
}

/** Texts of markers by the number of the column that they happened in. */
function markedColumns(markers, columns) {
  const found = new Map();
  for (const { at, kind, text } of markers) {
    const place = columns.findLastIndex((column) => column.start <= at);
    if (place < 0) continue;
    found.set(place, [...(found.get(place) ?? []), `${KINDS[kind] ?? kind}${text ? `: ${text}` : ""}`]);
  }
  return found;
}

/** Draws a dashed line through every column in which something happened. */
const MARK_LINES = {
  id: "markLines",
  afterDatasetsDraw(chart, _, { places = [] }) {
    const { ctx, chartArea, scales } = chart;
    ctx.save();
    ctx.strokeStyle = colour("text");
    ctx.lineWidth = 1;
    ctx.setLineDash([4, 3]);
    for (const place of places) {
      const across = scales.x.getPixelForValue(place);
      ctx.beginPath();
      ctx.moveTo(across, chartArea.top);
      ctx.lineTo(across, chartArea.bottom);
      ctx.stroke();
    }
    ctx.restore();
  },
};

function config(labels, rates, amounts, layers, marks) {
  const line = {
    type: "line",
    label: "Hit rate",
    data: rates,
    yAxisID: "rate",
    order: 0,
    borderColor: colour("hits"),
    backgroundColor: colour("hits"),
    borderWidth: 2.5,
    pointRadius: rates.filter((rate) => rate !== null).length < 4 ? 3 : 0,
    pointHitRadius: 8,
    spanGaps: true,
  };
  const bars = layers.map((layer, at) => ({
    label: layer.title,
    data: amounts[at],
    order: 1,
    stack: "missed",
    backgroundColor: layer.fill(),
    hoverBackgroundColor: layer.fill(),
    maxBarThickness: 28,
    categoryPercentage: 1,
    barPercentage: 0.86,
  }));
  return {
    type: "bar",
    data: { labels, datasets: [line, ...bars] },
    plugins: [MARK_LINES],
    options: {
      interaction: { mode: "index", intersect: false },
      scales: {
        x: { stacked: true, grid: { display: false }, ticks: { maxRotation: 0, autoSkipPadding: 20 } },
        y: {
          stacked: true,
          beginAtZero: true,
          title: { display: !narrow(), text: "tokens computed" },
          ticks: { callback: brief, maxTicksLimit: 6 },
        },
        rate: {
          position: "right",
          min: 0,
          max: 1,
          grid: { display: false },
          title: { display: !narrow(), text: "hit rate" },
          ticks: { callback: (share) => percent(share, 0), maxTicksLimit: 6 },
        },
      },
      plugins: {
        legend: { display: false },
        markLines: { places: [...marks.keys()] },
        tooltip: {
          filter: (item) => item.dataset.yAxisID === "rate" || item.raw > 0,
          callbacks: {
            afterTitle: ([item]) => marks.get(item?.dataIndex) ?? [],
            label: ({ dataset, raw }) => ` ${dataset.label}: ${dataset.yAxisID === "rate" ? percent(raw) : `${count(raw)} tokens`}`,
          },
        },
      },
    },
  };
}
