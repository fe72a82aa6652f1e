// One replica.

import { html } from "../../vendor/ui.js";
import { brief, count, percent, seconds } from "../../core/format.js";
import { Facts } from "../../parts/facts.js";
import { Meter } from "../../parts/meter.js";
import { Drain } from "./drain.js";
import { stateOf } from "./state.js";

/** What the picture of a cache rests on, and what to do where that is little. */
const SOURCES = {
  events: { tone: "good", text: "Exact: the engine reports every block that it stores and drops." },
  predicted: { tone: "", text: "What was sent there, corrected by the cached tokens that the engine reports. KV events would make it exact." },
  blind: {
    tone: "bad",
    text: "What was sent there, and nothing corrects it. Turn on KV events, or at least reports of cached tokens (vLLM: \
--enable-prompt-tokens-details, SGLang: --enable-cache-report).",
  },
};

/**
 * @param {object} props
 * @param {object} props.replica as `GET replicas` has it
 * @param {object[]} props.replicas all of them
 * @param {(() => void)|null} props.onDrained null for those who may not order it
 */
export function ReplicaCard({ replica, replicas, onDrained }) {
  const { id, url, region, state, engine, index, learned } = replica;
  const { tone, text } = stateOf(replica);
  const source = SOURCES[index.source];
  return html`<article class="card" aria-label=${id}>
    <div class="titled">
      <h3 class="name">${id}</h3>
      <span class="buttons">
        ${onDrained && html`<${Drain} replica=${replica} replicas=${replicas} onDone=${onDrained} />`}
        <span class=${`badge ${tone}`} title=${text || null}>${state}</span>
      </span>
    </div>
    <p class="note">${[url, region, engine.kind, engine.ranks > 1 && `${engine.ranks} ranks`].filter(Boolean).join(" · ")}</p>
    ${text && html`<p class=${tone === "bad" ? "warned" : "note"}>${text}</p>`}
    <${Facts}
      rows=${[
        ["Requests", html`${count(replica.requests)}<${Note}>engine: ${count(engine.running)} running, ${count(engine.waiting)} waiting<//>`],
        ["Prefill in flight", `${count(replica.prefill_tokens_in_flight)} tokens`],
        ["Cache in use", html`<${Meter} share=${engine.cache_use} /><${Note}>${capacity(index, engine)}<//>`],
        ["Known of it", html`<span class=${`badge ${source.tone}`}>${index.source}</span> ${count(index.blocks)} blocks<${Note}
          warned=${index.source === "blind"}>${source.text}<//>`],
        ...replica.events.map((feed) => [replica.events.length > 1 ? `Events, rank ${feed.rank}` : "Events", html`<${Feed} feed=${feed} />`]),
        ["Prediction", html`<${Prediction} prediction=${replica.prediction} />`],
        ["Speed learned", html`<${Speed} learned=${learned} />`],
      ]}
    />
  </article>`;
}

const Note = ({ warned, children }) => html`<span class=${warned ? "warned" : "note"}>${children}</span>`;

function capacity({ capacity_blocks: blocks }, { block_size: size, prefix_caching: caches }) {
  if (caches === false) return "Prefix caching is off at the engine: nothing is ever reused. Turn it on.";
  if (blocks === null) return "The engine does not report its size.";
  return `${count(blocks)} blocks${size ? ` of ${count(size)} tokens: ${brief(blocks * size)} tokens` : ""}`;
}

function Feed({ feed }) {
  const { state, gaps, batches, last_batch_age_seconds: age, problem } = feed;
  const tone = { live: "good", silent: "bad" }[state] ?? "";
  return html`<span class=${`badge ${tone}`}>${state}</span> ${gaps > 0 ? html`<strong
    class="bad">${count(gaps)} ${gaps === 1 ? "gap" : "gaps"}</strong>` : "no gaps"}
    ${problem ? html`<${Note} warned=${true}>${problem}<//>`
      : html`<${Note}>${count(batches)} batches, the last ${age === null ? "still to come" : `${seconds(age)} ago`}<//>`}`;
}

function Speed({ learned }) {
  return html`${brief(learned.prefill_tokens_per_second)} tokens/s prefill
    <${Note}>
      ${seconds(learned.base_ttft_seconds)} before the first token, ${seconds(learned.decode_seconds_per_token)} for each one more
    <//>`;
}

function Prediction({ prediction }) {
  const { requests, prompt_tokens: prompt, over_tokens: over, under_tokens: under, window_seconds: window } = prediction;
  if (!requests) return html`–<${Note}>no answer with a report in the last ${count(window / 60)} minutes<//>`;
  return html`${percent(over / prompt)} too much, ${percent(under / prompt)} too little
    <${Note}>of ${brief(prompt)} prompt tokens; ${count(requests)} reports in ${count(window / 60)} minutes<//>`;
}
