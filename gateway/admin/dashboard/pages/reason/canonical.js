// What canonicalization would do about a reason: its rules, and places that could be declared for them.

import { html } from "../../vendor/ui.js";
import { NEEDS_SLOT, OFF_BY_DEFAULT, wordsOf } from "../../core/canon.js";
import { counted } from "../../core/format.js";
import { Rule, TurnOn } from "../../parts/rule.js";
import { NotLookedAt } from "../../parts/states.js";
import { Suggestion, suggestionKey } from "../../parts/suggestion.js";

/** @param {{summary: object, text: object}} props text: the reason, as the catalog has it */
export function Canonical({ summary, text }) {
  const { looked_at: looked, rules: rows, suggestions } = summary.canonicalization;
  const own = suggestions.filter((each) => each.reason === text.code);
  if (!text.rules.length && !own.length) return null;
  return html`<section class="card" aria-labelledby="canonicalization">
    <h2 id="canonicalization" tabindex="-1">What canonicalization would do</h2>
    ${text.rules.length > 0 &&
    (looked.requests
      ? html`<p class="hint">In this window, for everything the rules fix in ${counted(looked.requests, "request")}, not for this reason alone.</p>`
      : html`<${NotLookedAt} />`)}
    ${NEEDS_SLOT.has(text.code) &&
    html`<p><strong>It needs the place:</strong> what belongs to one user is found only in places that are declared as slots
      (<code>canon.dynamic_suffix.slots</code>).${own.length === 0 && " None could be suggested in this window."}</p>`}
    <ul class="rules">
      ${text.rules.map((rule, at) => {
        const having = rows.filter((row) => row.rule === rule);
        if (!having.length || !looked.requests) return html`<${Idle} key=${rule} rule=${rule} summary=${summary} />`;
        return having.map((row) => html`<${Rule} key=${`${rule} ${row.mode}`} row=${row} summary=${summary} open=${at === 0} />`);
      })}
    </ul>
    ${own.length > 0 &&
    html`<h3>Places that vary, and no rule finds by itself</h3>
      <ul class="rules">
        ${own.map((each) => html`<${Suggestion} key=${suggestionKey(each)} suggestion=${each} />`)}
      </ul>`}
    <p class="hint">docs/canonicalization.md says exactly what each rule changes, docs/engine-test.md how often the answers of a real model changed.</p>
  </section>`;
}

/** A rule that changed nothing in the window, or of which that is not known. */
function Idle({ rule, summary }) {
  const { does, mind } = wordsOf(rule);
  const found = summary.canonicalization.looked_at.requests > 0;
  const nothing = OFF_BY_DEFAULT.has(rule) ? " is off, or would change nothing in this window" : " would change nothing in this window";
  return html`<li>
    <h3><code>${rule}</code>${found && nothing}</h3>
    <p>${does}${mind && ` ${mind}`}</p>
    <${TurnOn} rules=${[rule]} summary=${summary} />
  </li>`;
}
