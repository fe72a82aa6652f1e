// The first difference between a request and the earlier one it was compared with: the texts around it side by side,
// and token by token. Everything is masked: letters are x, digits 9.

import { html } from "../vendor/ui.js";
import { link } from "../core/address.js";
import { count, seconds } from "../core/format.js";
import { Sides } from "./sides.js";

/**
 * @param {object} props
 * @param {object|null} props.difference as `GET requests/{id}` has it
 * @param {object|null} props.reference likewise
 */
export function DifferenceView({ difference, reference }) {
  if (!difference) return html`<p class="hint">${noDifference(reference)}</p>`;
  const { before, after, tokens } = difference;
  return html`<div class="difference">
    <p><strong>${difference.said}</strong></p>
    <p class="hint">${place(difference)}</p>
    <${Sides}
      before=${before}
      after=${after}
      beforeTitle=${beforeTitle(reference)}
      afterTitle="Now: this request"
      belowBefore=${tokens && html`<${Tokens} tokens=${tokens.before} />`}
      belowAfter=${tokens && html`<${Tokens} tokens=${tokens.after} />`}
    />
    <p class="hint">
      Letters are shown as x, digits as 9, and what was recognized stands in ‹›.
      ${before && before === after && " Masked, the two texts look the same: what differs are the letters or digits themselves."}
      ${tokens
        ? html` Tokens: <span class="tokens"><mark class="first">the first that differs</mark></span>,${" "}
            <span class="tokens"><mark class="differs">others that differ</mark></span>.`
        : " There are no tokens to show beside them: the gateway no longer has them, or never made them itself."}
    </p>
  </div>`;
}

/** @param {{tokens: {text: string, state: "same"|"first"|"differs"}[]}} props */
function Tokens({ tokens }) {
  if (!tokens.length) return html`<p class="hint">No tokens from here on: the prompt ends.</p>`;
  return html`<p class="tokens">
    ${tokens.map(({ text, state }) => {
      if (state === "same") return html`<span>${visible(text)}</span>`;
      return html`${state === "first" && html`<b class="sr">first token that differs: </b>`}<mark class=${state}>${visible(text)}</mark>`;
    })}
  </p>`;
}

function beforeTitle(reference) {
  if (!reference) return "Before";
  return html`Before: <a href=${link(["requests", reference.id])}>${reference.id}</a>, ${seconds(reference.seconds_before)} earlier, by
    ${" "}${reference.source || "an unnamed client"}`;
}

/** Where it is, as far as the sentence above does not say it already. */
function place({ said, path, role, line, column }) {
  const parts = [role && `${role} message`, path && !said.startsWith(path) && path, line > 0 && `line ${count(line)}, column ${count(column)}`];
  return parts.filter(Boolean).join(", ");
}

function noDifference(reference) {
  if (!reference) return "It was compared with no earlier request: nothing comparable is known.";
  return "It does not differ from the earlier request, as far as that goes.";
}

/** Blanks within a token are part of it, so they are seen. */
const visible = (text) => (text === "" ? "∅" : text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "→"));
