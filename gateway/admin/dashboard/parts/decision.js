// How a replica was chosen, in a word.

import { html } from "../vendor/ui.js";

/** What the words mean. */
export const DECISIONS = {
  warm: "no replica holds more of the prompt, and this one holds at least half of it",
  partial: "no replica holds more of the prompt, but this one holds less than half of it",
  cold: "no replica holds any of the prompt",
  balanced: "another replica holds more, and would have answered later",
  failover: "the first choice could not be reached",
  blind: "the prompt could not be turned into tokens, so it was routed by its text",
};

/** Every word with its badge and its meaning. */
export function DecisionLegend() {
  return html`<p class="hint">
    Decision, by what replicas held of the prompt when it was made:${" "}
    ${Object.entries(DECISIONS).map(([kind, meaning], number) => html`${number > 0 && "; "}<${DecisionBadge} kind=${kind} /> ${meaning}`)}.
  </p>`;
}

/** @param {{kind: string}} props empty where no replica took the request */
export function DecisionBadge({ kind }) {
  const tone = { warm: "good", partial: "partly", failover: "bad", blind: "bad" }[kind] ?? "";
  return kind ? html`<span class=${`badge ${tone}`} title=${DECISIONS[kind]}>${kind}</span>` : html`<span class="badge bad">not sent</span>`;
}
