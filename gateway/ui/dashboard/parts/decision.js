// How a replica was chosen, in a word.

import { html } from "../vendor/ui.js";

/** What the words mean. */
export const DECISIONS = {
  warm: "to the replica that holds most of what is cached of the prompt",
  cold: "no replica holds any of the prompt",
  balanced: "another replica holds more, and would have answered later",
  failover: "the first choice could not be reached",
  blind: "the prompt could not be turned into tokens, so it was routed by its text",
};

/** @param {{kind: string}} props empty where no replica took the request */
export function DecisionBadge({ kind }) {
  const tone = { warm: "good", failover: "bad", blind: "bad" }[kind] ?? "";
  return kind ? html`<span class=${`badge ${tone}`} title=${DECISIONS[kind]}>${kind}</span>` : html`<span class="badge bad">not sent</span>`;
}
