// A chart, and the same figures as a table for those who cannot see it or want the numbers.

import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { Chart } from "../vendor/chart.js";
import { colour } from "../core/colours.js";
import { THEME_CHANGED } from "../core/theme.js";

/**
 * @param {object} props
 * @param {string} props.title what it shows, for screen readers
 * @param {() => import("chart.js").ChartConfiguration} props.config made anew for every drawing: colours follow the theme
 * @param {string} props.drawn what the drawing depends on: it is drawn again when this changes
 * @param {{head: string[], rows: (string|number)[][]}} props.table the same figures
 * @param {number} props.height CSS pixels
 * @param {boolean} [props.heading] the title is the heading of a section of the page
 * @param {any} [props.note] what is said about it
 * @param {any} [props.beside] what stands left of the drawing, such as names of its bars
 */
export function ChartBox({ title, config, drawn, table, height = 260, heading = false, note = null, beside = null }) {
  const canvas = useRef(null);
  const chart = useRef(null);
  const [asTable, showTable] = useState(false);
  useEffect(() => {
    if (asTable) return undefined;
    const draw = () => {
      const wanted = config();
      Chart.defaults.color = colour("muted");
      Chart.defaults.borderColor = colour("grid");
      Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
      const now = chart.current;
      if (now && now.config.type === wanted.type) {
        now.data = wanted.data;
        now.options = common(wanted.options);
        now.update("none");
      } else {
        now?.destroy();
        chart.current = new Chart(canvas.current, { ...wanted, options: common(wanted.options) });
      }
    };
    draw();
    addEventListener(THEME_CHANGED, draw);
    return () => removeEventListener(THEME_CHANGED, draw);
  }, [drawn, asTable]);
  useEffect(
    () => () => {
      chart.current?.destroy();
      chart.current = null;
    },
    [asTable],
  );
  return html`<figure class="chart">
    <figcaption>
      ${heading ? html`<h2>${title}</h2>` : html`<span>${title}</span>`}
      <button class="quiet" onClick=${() => showTable(!asTable)}>${asTable ? "Show chart" : "Show numbers"}</button>
    </figcaption>
    ${note && html`<p class="hint">${note}</p>`}
    ${asTable
      ? html`<div class="scroll" tabindex="0" role="region" aria-label=${title}>
          <table>
            <thead>
              <tr>${table.head.map((cell) => html`<th scope="col">${cell}</th>`)}</tr>
            </thead>
            <tbody>
              ${table.rows.map(([first, ...rest]) => html`<tr><th scope="row">${first}</th>${rest.map((cell) => html`<td class="number">${cell}</td>`)}</tr>`)}
            </tbody>
          </table>
        </div>`
      : html`<div class=${beside ? "beside" : "alone"}>
          ${beside}
          <div class="canvas" style=${{ height: `${height}px` }}>
            <canvas ref=${canvas} role="img" aria-label=${`${title}. “Show numbers” has the same as a table.`}></canvas>
          </div>
        </div>`}
  </figure>`;
}

function common(options = {}) {
  return { responsive: true, maintainAspectRatio: false, animation: false, ...options };
}
