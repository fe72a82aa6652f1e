// A place in the prompts of one application that varies, and that no rule finds by itself yet: a slot to declare.

import { html } from "../vendor/ui.js";
import { link } from "../core/address.js";
import { count, counted, gained } from "../core/format.js";
import { CopyLines } from "./copy.js";

const VARIES = {
  conversation: "the same in all turns of a conversation",
  request: "another one with every request",
};

/**
 * @param {object} props
 * @param {object} props.suggestion one of the summary's `canonicalization.suggestions`
 * @param {string} [props.title] of its reason; empty on the reason's own page
 */
export function Suggestion({ suggestion, title = "" }) {
  const { name, regex, varies, reason, model, tenant, source, requests, tokens, points, yaml } = suggestion;
  const whose = { model, tenant, source };
  return html`<li>
    <h4>Declare the slot <code>${name}</code>${points !== null && html`: <span class="good">${gained(points / 100)}</span> hit rate, at most`}</h4>
    <p>
      In the leading messages of <span class="chip" title="Source: the client family">${source}</span> stands a value that is
      ${" "}${VARIES[varies]}. It is found by
      ${" "}<code class="regex clamp">${regex}</code>
    </p>
    <p class="hint">
      ${counted(requests, "request")} of ${tenant} to ${model} computed ${count(tokens)} tokens again for it.
    </p>
    <details>
      <summary>How to declare it</summary>
      <${CopyLines} name=${`lines for the slot ${name}`} text=${yaml} />
      <p class="hint">For the gateway's configuration; the values are moved where <code>dynamic-suffix</code> is on.</p>
    </details>
    <p class="links">
      ${title && html`<a href=${link(["reasons", reason], whose)}>${title}: examples</a>`}
      <a href=${link([], whose)}>All of ${source}</a>
    </p>
  </li>`;
}

/** What distinguishes it from all others. */
export const suggestionKey = ({ model, tenant, source, name, regex }) => JSON.stringify([model, tenant, source, name, regex]);
