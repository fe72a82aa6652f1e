// Which replicas could have taken a request, with every term of what that would have cost.

import { html } from "../../vendor/ui.js";
import { count, seconds } from "../../core/format.js";
import { DECISIONS, DecisionBadge } from "../../parts/decision.js";
import { StackTable } from "../../parts/stack.js";

const BARRED = {
  unavailable: "could not be chosen: down, draining, avoided after a failure, or being warmed",
  failed: "was tried, and failed",
  pinned: "could not be chosen: the request may not go there",
};

const LEAST_COST = "expected_ttft";

const COLUMNS = [
  { title: "Replica" },
  { title: "Held tokens", number: true },
  { title: "Queue", number: true },
  { title: "Prefill", number: true },
  { title: "Base and others", number: true },
  { title: "Cost", number: true },
  { title: "Outcome" },
];

/** @param {{decision: object, promptTokens: number}} props decision: as `GET requests/{id}` has it */
export function Candidates({ decision, promptTokens }) {
  const { targets, kind, policy, failed_attempts: failed } = decision;
  const least = policy === LEAST_COST;
  const ranked = targets.some((target) => target.rank > 0);
  const rows = targets.map((target) => ({
    key: `${target.replica} ${target.rank}`,
    tone: target.chosen ? "chosen" : "",
    cells: [
      ranked ? `${target.replica}, rank ${target.rank}` : target.replica,
      `${count(target.held_tokens)} of ${count(promptTokens)}`,
      ...terms(target).map((term) => (target.barred ? "–" : seconds(term))),
      target.chosen ? html`<strong>chosen</strong>` : target.barred ? (BARRED[target.barred] ?? target.barred) : "not chosen",
    ],
  }));
  return html`
    <h2>Where it went</h2>
    <p>
      <${DecisionBadge} kind=${kind} /> ${DECISIONS[kind] ?? "no replica could take it"}. Policy: <code>${policy}</code>${least &&
      ", which takes the least cost; near ties go by the prompt"}.
      ${failed > 0 && ` ${count(failed)} that ${failed === 1 ? "was" : "were"} tried before failed.`}
      ${decision.bypasses_cache && " The request asked not to use the cache."}
    </p>
    ${rows.length > 0 &&
    html`<${StackTable} caption="Replicas that could have taken it" columns=${COLUMNS} rows=${rows} />
      <p class="hint">
        Held: what the replica was believed to hold when this was decided. Queue: prefill in flight there, and the wait for a place.
        Prefill: what it does not hold, by its learned rate. Base and others: what comes before any first
        token, and what the prefill costs those behind it (<code>placement.miss_weight</code>). Cost: the sum, which ${least ? "the policy compares" : "this policy does not look at"}.
      </p>`}
  `;
}

/** What a target's cost is made of, and the cost. */
function terms({ queue_seconds: queue, prefill_seconds: prefill, cost_seconds: cost }) {
  return [queue, prefill, Math.max(cost - queue - prefill, 0), cost];
}
