// Who has a reason, and how much of their prompts it takes.

import { html } from "../../vendor/ui.js";
import { here } from "../../core/address.js";
import { count, percent } from "../../core/format.js";

/**
 * @param {object} props
 * @param {string} props.name of the filter, and of the field of `rows` with its value
 * @param {object[]} props.rows as the summary's `by_source`
 * @param {string} props.code the reason
 * @param {number} props.tokens its tokens in all
 */
export function Shares({ at, name, title, rows, code, tokens }) {
  const having = rows
    .map((row) => ({ value: row[name], tokens: row.reasons[code] ?? 0, of: row.prompt_tokens }))
    .filter((row) => row.tokens)
    .sort((one, other) => other.tokens - one.tokens);
  return html`<section class="card span-6" aria-labelledby=${`by-${name}`}>
    <h2 id=${`by-${name}`}>${title}</h2>
    <div class="scroll" tabindex="0" role="region" aria-label=${`Table: ${title}`}>
      <table>
        <thead>
          <tr>
            <th scope="col">Name</th>
            <th scope="col" class="number">Tokens</th>
            <th scope="col" class="number">Of this reason</th>
            <th scope="col" class="number roomy">Of its own prompts</th>
          </tr>
        </thead>
        <tbody>
          ${having.map(
            (row) => html`<tr key=${row.value}>
              <th scope="row">
                ${row.value && at.filters[name] !== row.value
                  ? html`<a href=${here({ [name]: row.value })}>${row.value}</a>`
                  : row.value || "(none)"}
              </th>
              <td class="number">${count(row.tokens)}</td>
              <td class="number">${percent(row.tokens / tokens)}</td>
              <td class="number roomy">${percent(row.tokens / row.of)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  </section>`;
}
