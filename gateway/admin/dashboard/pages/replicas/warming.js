// Declared prefixes: which there are, and sending them to the replicas.

import { html, useEffect, useState } from "../../vendor/ui.js";
import { order } from "../../core/api.js";
import { count, seconds } from "../../core/format.js";
import { useAsked } from "../../core/use.js";
import { Dialog } from "../../parts/dialog.js";
import { StackTable } from "../../parts/stack.js";
import { Asked } from "../../parts/states.js";

const JOBS_SHOWN = 5;

/** @param {{replicas: object[], me: object|null}} props replicas: as `GET replicas` has them */
export function Warming({ replicas, me }) {
  const [busy, setBusy] = useState(false);
  const asked = useAsked("warm", {}, busy ? 1 : 5);
  const running = asked.value?.jobs.some((job) => job.state === "running") ?? false;
  useEffect(() => setBusy(running), [running]);
  return html`<section class="card" aria-label="Warming">
    <h2>Warm up before clients ask</h2>
    <${Asked} asked=${asked} what="declared prefixes">
      ${({ declared, jobs, again, totals }) => html`
        ${declared.length ? html`<${Declared} declared=${declared} replicas=${replicas} me=${me} onStarted=${asked.refresh} />`
          : html`<${NoneDeclared} />`}
        <${Again} again=${again} />
        ${totals.length > 0 && html`<${Totals} totals=${totals} />`}
        ${jobs.length > 0 && html`<${Jobs} jobs=${jobs} />`}
      `}
    <//>
  </section>`;
}

const NoneDeclared = () => html`<p>
  No prefixes are declared. Name a file of them in <code>warm.file</code>: a replica that joins or restarts then gets them before it
  takes its share of the requests, and they can be sent from here.
</p>`;

function Declared({ declared, replicas, me, onStarted }) {
  const [asks, setAsks] = useState(false);
  const plan = planned(declared, replicas);
  const start = async () => {
    await order("warm", { declared: true });
    onStarted();
  };
  return html`
    <div class="titled">
      <p>
        ${many(declared.length, "prefix is", "prefixes are")} declared (<code>warm.file</code>), of
        ${" "}${[...new Set(declared.map((prefix) => prefix.model))].join(", ")}. A replica that joins gets them by itself.
      </p>
      ${me?.role === "operate" && html`<button disabled=${!plan.requests} onClick=${() => setAsks(true)}>Warm now…</button>`}
      ${me?.role === "read" && html`<span class="hint">This token may only look: warming needs the role <code>operate</code>.</span>`}
    </div>
    ${asks &&
    html`<${Dialog} title="Send the declared prefixes?" action="Warm now" onConfirm=${start} onClose=${() => setAsks(false)}>
      <p>
        ${many(declared.length, "prefix", "prefixes")} to every replica of the model that is up and that the tenant may use: up to
        ${" "}<strong>${many(plan.requests, "request", "requests")}</strong>, each with one token of output, at the rate of
        <code> warm.requests_per_second</code>.
      </p>
      <p>
        ${plan.tokens === null
          ? "How many tokens that is to compute is not known: the prefixes were not counted yet."
          : html`At most <strong>${many(plan.tokens, "token", "tokens")}</strong> to prefill, about ${seconds(plan.seconds)} of prefill
              in all, less what is cached already. Clients' requests on a busy replica wait behind it.`}
      </p>
    <//>`}
  `;
}

/** What keeps prefixes cached, and how much of its budget is used. */
function Again({ again }) {
  if (!again.enabled) {
    return html`<p class="hint">
      After a reset, an expiry or a restart nothing is sent again by itself: set a budget in <code>warm.again.tokens_per_hour</code>.
    </p>`;
  }
  const { busy, budget, gone } = again.left_out;
  const left = [[busy, "no idle replica"], [budget, "budget used up"], [gone, "replica gone"]].filter(([number]) => number > 0);
  return html`<p>
    Declared and ${many(again.hottest, "hot prefix is", "hot prefixes are")} sent again to idle replicas
    (<code>warm.again</code>). Last hour: <strong>${count(again.tokens_used)}</strong> of ${count(again.tokens_per_hour)} tokens, ${" "}
    ${count(again.requests_used)} of ${count(again.requests_per_hour)} requests. ${many(again.waiting, "request waits", "requests wait")}${" "}
    for an idle replica or for the budget.
    ${left.length > 0 && ` Left out: ${left.map(([number, why]) => `${count(number)} (${why})`).join(", ")}.`}
  </p>`;
}

const CAUSES = {
  order: "asked for", joined: "replica joined", prompt_version: "new prompt version", reset: "after a reset",
  expiry: "after an expiry", restart: "after a restart", idle: "before an idle expiry", schedule: "by time",
};

/** What warm-up has cost and saved since the start. */
function Totals({ totals }) {
  const rows = totals.map((each) => ({
    key: each.cause,
    cells: [
      CAUSES[each.cause] ?? each.cause, count(each.requests), count(each.prefill_tokens), seconds(each.gpu_seconds),
      count(each.saved_tokens), seconds(each.saved_gpu_seconds),
    ],
  }));
  const numbers = ["Requests", "Tokens computed", "GPU time", "Tokens saved", "GPU time saved"].map((title) => ({ title, number: true }));
  return html`<h3>Cost and gain</h3>
    <p class="hint">Since the start. Saved is the first use by a client of each block that warm-up has computed.</p>
    <${StackTable} caption="Cost and gain of warming" columns=${[{ title: "Why" }, ...numbers]} rows=${rows} />`;
}

function Jobs({ jobs }) {
  const rows = [...jobs].slice(0, JOBS_SHOWN).map((job) => ({
    key: job.id,
    cells: [
      html`<span class=${`badge ${{ done: job.failed ? "bad" : "good", cancelled: "bad" }[job.state] ?? ""}`}>${job.state}</span>`,
      job.joined ? `${job.joined} joined` : `${CAUSES[job.cause] ?? job.cause}${job.by && ` by ${job.by}`}`,
      html`<progress max=${job.total} value=${job.done + job.failed}
        aria-label="Prefixes sent"></progress> ${count(job.done + job.failed)} of ${count(job.total)}`,
      html`<span>${outcome(job)}</span>`,
      seconds(job.seconds),
    ],
  }));
  const columns = [{ title: "Job" }, { title: "Why" }, { title: "Sent" }, { title: "What came of it" }, { title: "Time", number: true }];
  return html`<h3>Last jobs</h3><${StackTable} caption="Last jobs of warming" columns=${columns} rows=${rows} />`;
}

/** What came of a job, in words. */
function outcome({ state, reason, failed, down, failures }) {
  const parts = [];
  if (reason) parts.push(reason);
  if (failed) parts.push(`${count(failed)} failed; the first at ${failures[0].replica}: ${failures[0].status ?? "no answer"} ${failures[0].message}`);
  if (down.length) parts.push(`left out, because down or draining: ${down.join(", ")}`);
  return parts.length ? parts.join("; ") : state === "running" ? "running" : "all sent";
}

/**
 * What sending all of them comes down to, at most.
 * @returns {{requests: number, tokens: number|null, seconds: number}} tokens: null if some are not counted
 */
function planned(declared, replicas) {
  let requests = 0;
  let tokens = 0;
  let time = 0;
  for (const prefix of declared) {
    for (const replica of replicas) {
      const meant = replica.model === prefix.model && (prefix.replicas?.includes(replica.id) ?? true);
      if (!meant || !replica.up || replica.state === "draining") continue;
      const ranks = replica.engine.ranks ?? 1;
      requests += ranks;
      if (prefix.tokens === null) tokens = null;
      if (tokens === null) continue;
      tokens += prefix.tokens * ranks;
      time += (prefix.tokens * ranks) / replica.learned.prefill_tokens_per_second;
    }
  }
  return { requests, tokens, seconds: time };
}

const many = (number, one, more) => `${count(number)} ${number === 1 ? one : more}`;
