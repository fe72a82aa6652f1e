// What canonicalization did to a request, and what it would have done.

import { html } from "../../vendor/ui.js";
import { ALL } from "../../core/canon.js";
import { count } from "../../core/format.js";
import { Sides } from "../../parts/sides.js";
import { StackTable } from "../../parts/stack.js";

const COLUMNS = [
  { title: "Rule" },
  { title: "Mode" },
  { title: "Places", number: true },
  { title: "Tokens saved", number: true },
];

const LEFT_OUT = html`No rule was tried on it: it misses nothing for an avoidable reason, and its conversation is not in the sample of those
  that are tried all the same (<code>explain.observed_share</code>).`;

/** @param {{canonicalization: object, skipped: boolean}} props as `GET requests/{id}` has them */
export function Canonical({ canonicalization, skipped }) {
  const { observed, left_out: leftOut, applied, context_lost: lost, rules, edits } = canonicalization;
  return html`
    <h2>Canonicalization</h2>
    <p>
      ${applied.length
        ? html`Changed on its way to the engine by ${applied.map((rule, at) => html`${at > 0 && ", "}<code>${rule}</code>`)}.`
        : "Sent on as it came: no rule changed it."}
      ${" "}${coverage(rules, { observed, leftOut, skipped })}
    </p>
    ${lost &&
    html`<p class="warned">
      Context was lost: what was moved in earlier turns of this conversation could not be put back where it stood, because it is not
      remembered any more. So its prompt changed once, and was computed again from there on.
    </p>`}
    ${rules.length > 0 && html`<${StackTable} caption="Rules of canonicalization that have to do with this request" columns=${COLUMNS} rows=${rules.map((row) => rowOf(row, observed))} />`}
    ${edits.length > 0 &&
    html`<h3>Places</h3>
      <ol class="edits">
        ${edits.map((edit, at) => html`<${Edit} key=${at} edit=${edit} />`)}
      </ol>
      <p class="hint">Letters are shown as x, digits as 9.</p>`}
  `;
}

function coverage(rules, { observed, leftOut, skipped }) {
  if (skipped) return "Its text was not examined: explaining was behind, or had used its share of the CPU time.";
  if (leftOut) return LEFT_OUT;
  if (!observed) return "What rules save, or would have saved, was not computed for it.";
  return rules.length ? "" : "No observed rule found anything to change either.";
}

function rowOf({ rule, mode, edits, saved_tokens: saved, lost_tokens: lost }, observed) {
  return {
    key: `${rule} ${mode}`,
    cells: [
      rule === ALL ? "All observed rules together" : html`<code>${rule}</code>`,
      mode === "apply" ? "applied" : "only observed",
      count(edits),
      !observed ? "not known" : saved === lost ? "none" : html`<span class=${saved > lost ? "good" : "bad"}>${signed(saved - lost)}</span>`,
    ],
  };
}

function Edit({ edit: { rule, mode, path, said, tokens, before, after } }) {
  const isOn = mode === "apply";
  return html`<li>
    <p>
      <code>${rule}</code> <span class="badge">${isOn ? "applied" : "only observed"}</span> ${said}
      <span class="note">
        ${path && html`<code>${path}</code>`}${tokens !== null && `${path && ": "}${effect(tokens, isOn)}`}
      </span>
    </p>
    ${(before || after) &&
    html`<${Sides} before=${before} after=${after} beforeTitle="As it was sent" afterTitle=${isOn ? "As it went on" : "As it would have gone on"} />`}
  </li>`;
}

function effect(tokens, isOn) {
  if (tokens === 0) return "the prompt keeps its length";
  const change = `${count(Math.abs(tokens))} token${Math.abs(tokens) === 1 ? "" : "s"} ${tokens > 0 ? "more" : "less"}`;
  return `${change} in the prompt${isOn ? "" : ", if it were on"}`;
}

const signed = (tokens) => `${tokens > 0 ? "+" : "−"}${count(Math.abs(tokens))}`;
