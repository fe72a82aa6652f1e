// The last requests as a table. New rows must not make a screen reader talk: the status line above it says what comes.

import { html } from "../../vendor/ui.js";
import { link } from "../../core/address.js";
import { clock, count, seconds } from "../../core/format.js";
import { DecisionBadge } from "../../parts/decision.js";
import { Meter } from "../../parts/meter.js";
import { ReasonName } from "../../parts/reason.js";
import { keyOf } from "./kept.js";

const COLUMNS = [
  ["Time"],
  ["Request"],
  ["Model", "roomy"],
  ["Tenant", "roomy"],
  ["Source"],
  ["Turn", "roomy number"],
  ["Replica", "roomy"],
  ["Decision", "roomy"],
  ["Prompt", "roomy number"],
  ["From cache"],
  ["Main reason", "roomy"],
  ["First token", "roomy number"],
];

/** @param {{rows: object[], reasons: Map<string, object>}} props rows: see `kept.js` */
export function RequestsTable({ rows, reasons }) {
  return html`<table class="feed">
    <caption class="sr">The last requests, newest first</caption>
    <thead>
      <tr>${COLUMNS.map(([title, kind = ""]) => html`<th scope="col" class=${kind}>${title}</th>`)}</tr>
    </thead>
    <tbody aria-live="off">
      ${rows.map((row) => ("gap" in row ? html`<${Gap} key=${keyOf(row)} row=${row} />` : html`<${Line} key=${keyOf(row)} row=${row}
        reasons=${reasons} />`))}
    </tbody>
  </table>`;
}

function Gap({ row }) {
  const text = row.gap === null ? "Some are left out here" : `${count(row.gap)} more left out here`;
  return html`<tr class="gap"><td colspan=${COLUMNS.length}>${text}: they came faster than can be shown.</td></tr>`;
}

function Line({ row, reasons }) {
  const reason = reasons.get(row.reason);
  return html`<tr>
    <td><time datetime=${row.time} title=${row.time}>${clock(row.at)}</time></td>
    <td><a class="cut mono" href=${link(["requests", row.id])} title=${row.id}>${row.id}</a></td>
    <td class="roomy"><span class="cut" title=${row.model}>${row.model}</span></td>
    <td class="roomy"><span class="cut" title=${row.tenant}>${row.tenant}</span></td>
    <td><span class="cut" title=${row.source}>${row.source || "–"}</span></td>
    <td class="roomy number">${row.turn ?? "–"}</td>
    <td class="roomy"><span class="cut replica" title=${row.replica}>${row.replica || "–"}</span></td>
    <td class="roomy">
      <${DecisionBadge} kind=${row.decision} />${row.status >= 400 && html` <span class="badge bad">${row.status}</span>`}
    </td>
    <td class="roomy number" title="Tokens">${count(row.prompt_tokens)}</td>
    <td title=${`${count(row.hits)} of ${count(row.prompt_tokens)} tokens, ${row.evidence}`}>
      <${Meter} share=${row.prompt_tokens ? row.hits / row.prompt_tokens : null} />
    </td>
    <td class="roomy" title=${row.reason === null ? "Nothing was computed again" : `${count(row.reason_tokens)} tokens`}>
      ${row.reason === null ? "–" : html`<${ReasonName} code=${row.reason} title=${reason?.title ?? row.reason} rung=${reason?.rung} />`}
    </td>
    <td class="roomy number">${seconds(row.ttft_seconds)}</td>
  </tr>`;
}
