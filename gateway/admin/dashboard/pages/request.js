// Everything that is known of one request.

import { html } from "../vendor/ui.js";
import { link } from "../core/address.js";
import { count, gpu, moment, money, percent, seconds } from "../core/format.js";
import { useAsked, useTitle } from "../core/use.js";
import { useCatalog } from "../parts/catalog.js";
import { CopyText } from "../parts/copy.js";
import { DecisionBadge } from "../parts/decision.js";
import { DifferenceView } from "../parts/difference.js";
import { Facts } from "../parts/facts.js";
import { Figure, Figures } from "../parts/figure.js";
import { Loading, ProblemNote } from "../parts/states.js";
import { Candidates } from "./request/candidates.js";
import { Canonical } from "./request/canonical.js";
import { Ladder } from "./request/ladder.js";
import { Missed } from "./request/missed.js";
import { Timeline } from "./request/timeline.js";
import { ownerOf } from "./spaces/words.js";

export function RequestPage({ id }) {
  useTitle(`Request ${id}`);
  const { value, problem, refresh } = useAsked(`requests/${encodeURIComponent(id)}`, {}, 0);
  return html`
    <p><a href=${link(["requests"])}>← The last requests</a></p>
    <div class="titled">
      <h1 tabindex="-1">Request <code>${id}</code></h1>
      ${value && html`<span class="buttons"><${DecisionBadge} kind=${value.decision.kind} /><${Ending} request=${value} /></span>`}
    </div>
    ${value ? html`<${Known} request=${value} />` : problem ? html`<${Unknown} problem=${problem} onRetry=${refresh} />`
      : html`<${Loading} what="the request" />`}
  `;
}

function Unknown({ problem, onRetry }) {
  if (problem.code !== "unknown_request") return html`<${ProblemNote} problem=${problem} onRetry=${onRetry} />`;
  return html`<div class="empty">
    <h2>Not kept, or not yet</h2>
    <p>
      The gateway keeps the last requests only (<code>explain.journal_requests</code>, <code>explain.journal_ttl_seconds</code>), each gateway
      its own, and knows of one about a second after its answer.
    </p>
    <p class="buttons"><button onClick=${onRetry}>Look again</button> <a href=${link(["requests"])}>See the last requests</a></p>
  </div>`;
}

function Ending({ request }) {
  const { status, ending } = request;
  const fine = status < 400 && ending === "complete";
  return html`<span class=${`badge ${fine ? "good" : "bad"}`}>${status} ${ending.replaceAll("_", " ")}</span>`;
}

function Known({ request }) {
  const { reasons, rungs } = useCatalog();
  const { prompt_tokens: prompt, hits, timings, value, "told": words, missed, hint } = request;
  const priced = value.lost.money !== null;
  const currency = useAsked(priced ? "config" : null, {}, 0).value?.explain.currency;
  const worth = (amount) => (currency && amount >= 0.0001 ? `, ${money(amount, currency)}` : "");
  return html`
    <section class="card" aria-label="Figures">
      <${Figures}>
        <${Figure} name="Prompt tokens" value=${count(prompt)} note=${`${count(request.completion_tokens)} generated`} />
        <${Figure} name="Served from cache" value=${percent(prompt ? hits / prompt : null)}
          note=${`${count(hits)} tokens, ${request.evidence}`} tone=${hits ? "good" : ""} />
        <${Figure} name="Computed again" value=${count(prompt - hits)}
          note=${`${gpu(value.lost.gpu_seconds)} of GPU time${worth(value.lost.money)}`} />
        <${Figure} name="Saved" value=${gpu(value.saved.gpu_seconds)} note=${`of GPU time${worth(value.saved.money)}`} />
        <${Figure} name="First token" value=${seconds(timings.ttft_seconds)}
          note=${timings.ttft_seconds === null ? "not streamed, or nothing came" : `${seconds(timings.seconds)} to the end`} />
      <//>
    </section>
    <div class="grid">
      <section class="card span-8"><${CopyText} title="In words" text=${words.join("\n")} /></section>
      <section class="card span-4"><h2>What was asked</h2><${WhatWasAsked} request=${request} /></section>
      <section class="card span-7"><${Ladder} ladder=${request.ladder} rungs=${rungs} /></section>
      <section class="card span-5"><${Timeline} timings=${timings} /></section>
      <section class="card span-12"><h2>Computed again, and why</h2><${Missed} missed=${missed} hint=${hint} promptTokens=${prompt} reasons=${reasons} /></section>
      <section class="card span-12">
        <h2>The first difference</h2>
        <${Reference} reference=${request.reference} prompt=${prompt} />
        <${DifferenceView} difference=${request.difference} reference=${request.reference} />
      </section>
      <section class="card span-12"><${Canonical} canonicalization=${request.canonicalization} skipped=${request.skipped} /></section>
      <section class="card span-12"><${Candidates} decision=${request.decision} promptTokens=${prompt} /></section>
      <section class="card span-6"><h2>Prefix space</h2><${Space} space=${request.space} /></section>
      <section class="card span-6"><h2>How its tokens were counted</h2><${Tokens} tokens=${request.tokens} /></section>
    </div>
  `;
}

function WhatWasAsked({ request }) {
  const { session, agent, parent_agent: parent, turn, source, model, tenant, endpoint, dialect, streamed, at } = request;
  const rows = [
    ["Model", named({ model })],
    ["Tenant", named({ tenant })],
    ["Source", source && named({ source })],
    ["Session", session && named({ session })],
    ["Agent", agent && html`<code class="clamp" title=${agent}>${agent}</code>${parent && html`, of <code>${parent}</code>`}`],
    ["Turn", turn],
    ["Endpoint", html`<code>${endpoint}</code>${dialect && `, translated from ${dialect}`}${streamed ? ", streamed" : ""}`],
    ["Over at", html`<time datetime=${request.time} title=${request.time}>${moment(at)}</time>`],
    ["Left out", request.skipped && "Its text was not examined: explaining was behind, or had used its share of the CPU time."],
  ];
  return html`<${Facts} rows=${rows} />`;
}

/** A name that leads to the requests which have it, too. Clients choose some of them, at any length. */
function named(filter) {
  const [name] = Object.values(filter);
  return html`<a class="clamp" title=${name} href=${link(["requests"], filter)}>${name}</a>`;
}

function Reference({ reference, prompt }) {
  if (!reference) return null;
  return html`<p>
    Compared with <a href=${link(["requests", reference.id])}>${reference.id}</a> (${reference.phrase},
    ${" "}${seconds(reference.seconds_before)} before${reference.source && `, by ${reference.source}`}): the first
    ${" "}${count(reference.equal_tokens)} of ${count(prompt)} tokens are equal.
  </p>`;
}

function Space({ space }) {
  const rows = [
    ["Shared by", ownerOf(space.owner)],
    ["Model", space.model],
    ["Template", html`<code>${space.template}</code>`],
    ["Scope", space.scope],
    ["Application", space.prompt],
    ["Adapter", space.adapter],
    ["Region", space.region],
    ["Context limit", count(space.context_limit)],
    ["Narrowed by", space.narrowed && "a cache_salt of the client"],
    ["Tokenizer", html`<code>${space.tokenizer}</code>`],
    ["Life", html`<code>${space.life}</code> (<a href=${link(["spaces"], { model: space.model })}>spaces of the model</a>)`],
  ];
  return html`<${Facts} rows=${rows} />`;
}

const TOKEN_SOURCES = {
  local: "the model's own tokenizer, in the gateway",
  engine_render: "the engine, which rendered and counted them",
  engine_tokenize: "the engine's tokenizer",
  text: "nowhere: words of the text stand in for tokens",
};

function Tokens({ tokens }) {
  const rows = [
    ["Tokens come from", TOKEN_SOURCES[tokens.source] ?? tokens.source],
    ["Counted here", `${count(tokens.own_count)} tokens`],
    ["Block size", `${count(tokens.block_size)} tokens`],
    ["Predicted in cache", `${count(tokens.predicted)} tokens`],
    ["Reported by the engine", tokens.cached === null ? "nothing" : `${count(tokens.cached)} tokens in cache`],
  ];
  return html`<${Facts} rows=${rows} />`;
}
