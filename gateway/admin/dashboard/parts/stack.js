// A table that becomes a list of cards where the screen is narrow.

import { html } from "../vendor/ui.js";

/**
 * @param {object} props
 * @param {string} props.caption what it lists, for screen readers
 * @param {{title: string, number?: boolean}[]} props.columns
 * @param {{key: string, cells: any[], tone?: string}[]} props.rows a cell for each column; the first one names the row
 */
export function StackTable({ caption, columns, rows }) {
  // As cards the browser would not take it for a table any more: the roles keep it one.
  return html`<table class="stack" role="table">
    <caption class="sr">${caption}</caption>
    <thead role="rowgroup">
      <tr role="row">${columns.map(({ title, number }) => html`<th role="columnheader" scope="col"
        class=${number ? "number" : ""}>${title}</th>`)}</tr>
    </thead>
    <tbody role="rowgroup">
      ${rows.map(
        ({ key, cells, tone = "" }) => html`<tr key=${key} role="row" class=${tone}>
          ${cells.map((cell, position) => {
            const { title, number } = columns[position];
            const kind = number ? "number" : "";
            return position === 0
              ? html`<th role="rowheader" scope="row" class=${kind}>${cell}</th>`
              : html`<td role="cell" class=${kind} data-title=${title}>${cell}</td>`;
          })}
        </tr>`,
      )}
    </tbody>
  </table>`;
}
