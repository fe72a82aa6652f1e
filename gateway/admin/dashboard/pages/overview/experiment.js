// The experiment: both groups side by side, with the difference and whether it is more than noise.

import { html } from "../../vendor/ui.js";
import { count, counted, gpu, money, moment, percent, seconds } from "../../core/format.js";

const ROWS = [
  ["hit_rate", "Hit rate", percent],
  ["ttft_p50", "First token, p50", seconds],
  ["ttft_p95", "First token, p95", seconds],
  ["ttft_p99", "First token, p99", seconds],
  ["total_p50", "Whole answer, p50", seconds],
  ["total_p95", "Whole answer, p95", seconds],
  ["total_p99", "Whole answer, p99", seconds],
  ["gpu_seconds", "Prefill per request, GPU time", seconds],
  ["error_share", "Failed", percent],
];
const METHODS = { round_robin: "replicas take turns and no rule changes the prompt", salt: "nothing cached is reused" };

export function Experiment({ results, currency }) {
  const { groups, difference, level } = results;
  const saved = results.saved_gpu_seconds;
  return html`<section class="card" aria-labelledby="experiment">
    <h2 id="experiment">With and without the gateway's help</h2>
    <p><strong>${results.verdict}</strong></p>
    <p class="hint">
      ${percent(results.cold_share, 0)} of the traffic (by ${results.by}) is held out since ${moment(results.since)}:
      ${" "}${METHODS[results.held_out]}. Model ${results.model ?? "–"}. In parentheses: ${percent(level, 0)} confidence intervals.
      ${saved && html`${" "}Saved so far: ${bounds(saved, signed(gpu))}${results.saved_cost && html` · ${bounds(results.saved_cost, signed((value) => money(value, currency)))}`}.`}
    </p>
    <div class="scroll" tabindex="0" role="region" aria-label="Table of both groups">
      <table>
        <thead>
          <tr>
            <th scope="col">Figure</th>
            <th scope="col" class="number">With the gateway</th>
            <th scope="col" class="number">Held out</th>
            <th scope="col" class="number">Held out less with</th>
            <th scope="col">Is it noise?</th>
          </tr>
        </thead>
        <tbody>
          <tr>
            <th scope="row">Requests</th>
            <td class="number">${size(groups.gateway)}</td>
            <td class="number">${size(groups.held_out)}</td>
            <td></td>
            <td></td>
          </tr>
          ${ROWS.map(([name, title, shown]) => {
            const found = difference[name];
            return html`<tr key=${name}>
              <th scope="row">${title}</th>
              <td class="number">${bounds(groups.gateway[name], shown)}</td>
              <td class="number">${bounds(groups.held_out[name], shown)}</td>
              <td class="number">${bounds(found, signed(shown))}</td>
              <td>${found ? (found.verdict === "noise" ? "yes" : "no") : html`<span class="hint">not known yet</span>`}</td>
            </tr>`;
          })}
        </tbody>
      </table>
    </div>
  </section>`;
}

const size = (group) => html`<span title=${counted(group.sampled_sessions, "session")}>${count(group.requests)}</span>`;

const signed = (shown) => (value) => (value < 0 ? `−${shown(-value)}` : shown(value));

function bounds(found, shown) {
  if (!found) return "–";
  return html`${shown(found.value)} <span class="hint">(${shown(found.low)} to ${shown(found.high)})</span>`;
}
