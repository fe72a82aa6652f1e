// Prefix spaces as a table.

import { html } from "../../vendor/ui.js";
import { link } from "../../core/address.js";
import { brief, count, moment, roughly, seconds } from "../../core/format.js";
import { Meter } from "../../parts/meter.js";
import { StackTable } from "../../parts/stack.js";
import { CAUSES, ownerOf } from "./words.js";

const COLUMNS = [
  { title: "Space" },
  { title: "Shared by" },
  { title: "Life" },
  { title: "Last used" },
  { title: "Requests", number: true },
  { title: "Reused" },
  { title: "Prefill saved", number: true },
  { title: "Personal data found" },
];

/** @param {{spaces: object[], onReset: ((space: object) => void)|null}} props onReset: null for those who may not */
export function SpaceTable({ spaces, onReset }) {
  const columns = onReset ? [...COLUMNS, { title: "Action" }] : COLUMNS;
  const rows = spaces.map((space) => ({
    key: space.id,
    tone: space.state === "ended" ? "ended" : "",
    cells: [
      html`<${Name} space=${space} />`,
      html`<${Owner} space=${space} />`,
      html`<${Life} space=${space} />`,
      html`<${LastUsed} space=${space} />`,
      html`<span>${count(space.requests)}<span class="note">${brief(space.prompt_tokens)} tokens</span></span>`,
      html`<span title=${`${count(space.cached_tokens)} of ${count(space.prompt_tokens)} prompt tokens`}>
        <${Meter} share=${space.prompt_tokens ? space.cached_tokens / space.prompt_tokens : null} />
      </span>`,
      seconds(space.saved_prefill_seconds),
      html`<${PersonalData} found=${space.personal_data} />`,
      ...(onReset
        ? [space.state === "alive" && html`<button class="quiet" aria-label=${`Reset ${space.model} of ${ownerOf(space.tenant)}`}
          onClick=${() => onReset(space)}>Reset…</button>`]
        : []),
    ],
  }));
  return html`<${StackTable} caption="Prefix spaces, the one used last first, ended ones behind" columns=${columns} rows=${rows} />`;
}

function Name({ space }) {
  const more = [space.adapter && `adapter ${space.adapter}`, space.region && `region ${space.region}`, space.id];
  return html`<span>
    <a href=${link(["requests"], { model: space.model })}>${space.model}</a> <span class="note"><code class="cut template"
      title=${space.template_version}>${space.template_version}</code></span>
    <span class="note" title=${`Life ${space.id}, context limit ${count(space.context_limit)}, tokenizer ${space.tokenizer_id}`}>
      ${more.filter(Boolean).join(" · ")}
    </span>
  </span>`;
}

function Owner({ space }) {
  const { tenant, scope, prompt } = space;
  const kept = [scope ? `scope ${scope}` : "no scope", prompt && `application ${prompt}`];
  return html`<span>${ownerOf(tenant)}<span class="note">${kept.filter(Boolean).join(" · ")}</span></span>`;
}

function Life({ space }) {
  const { state, cause, born_at: born, ended_at: ended, epoch } = space;
  if (state === "alive") {
    return html`<span><span class="badge good">alive</span><span class="note">since ${moment(born)}, epoch <span
      class="mono">${epoch}</span></span></span>`;
  }
  return html`<span>
    <span class="badge">ended</span> ${ended === null ? "" : moment(ended)}<span
      class="note">${CAUSES[cause] ?? cause}; began ${moment(born)}, epoch <span class="mono">${epoch}</span></span>
  </span>`;
}

function LastUsed({ space }) {
  const { state, used_at: used, expires_at: expires } = space;
  const now = Date.now() / 1000;
  const left = expires === null ? null : expires - now;
  return html`<span>
    ${now - used < 1.5 ? "just now" : `${roughly(now - used)} ago`}
    ${state === "alive" && html`<span
      class="note">${left === null ? "does not expire" : left > 0 ? `expires in ${roughly(left)}` : "about to end"}</span>`}
  </span>`;
}

function PersonalData({ found }) {
  if (!found.length) return html`<span class="hint">none</span>`;
  return html`<ul class="found">
    ${found.map(
      ({ kind, path, requests, shared }) => html`<li>
        ${shared ? html`<strong class="bad">${kind}, shared</strong>` : kind}
        <span class="note"><code>${path}</code>, ${count(requests)} ${requests === 1 ? "request" : "requests"}</span>
      </li>`,
    )}
  </ul>`;
}
