// What the rules of canonicalization would bring, or bring now, and places that could be declared for them.

import { html } from "../../vendor/ui.js";
import { ALL, effectOf, observed } from "../../core/canon.js";
import { count, counted, percent } from "../../core/format.js";
import { Rule } from "../../parts/rule.js";
import { NotLookedAt } from "../../parts/states.js";
import { Suggestion, suggestionKey } from "../../parts/suggestion.js";

const MOST_SUGGESTIONS = 5;

export function Canonical({ summary, catalog }) {
  const { looked_at: looked, rules, suggestions } = summary.canonicalization;
  const titles = new Map(catalog.map((text) => [text.code, text.title]));
  return html`<section class="card" aria-labelledby="canonicalization">
    <h2 id="canonicalization" tabindex="-1">What canonicalization would bring</h2>
    ${looked.requests ? html`<${Rules} summary=${summary} />` : html`<${NotLookedAt} />`}
    ${suggestions.length > 0 &&
    html`<h3>Places that vary, and no rule finds by itself</h3>
      <ul class="rules">
        ${suggestions
          .slice(0, MOST_SUGGESTIONS)
          .map((each) => html`<${Suggestion} key=${suggestionKey(each)} suggestion=${each} title=${titles.get(each.reason)} />`)}
      </ul>
      ${suggestions.length > MOST_SUGGESTIONS &&
      html`<p class="hint">${count(suggestions.length - MOST_SUGGESTIONS)} more stand on the pages of their reasons.</p>`}`}
    ${(rules.length > 0 || suggestions.length > 0) &&
    html`<p class="hint">docs/canonicalization.md says exactly what each rule changes, docs/engine-test.md how often the answers of a real model changed.</p>`}
  </section>`;
}

function Rules({ summary }) {
  const { looked_at: looked, rules } = summary.canonicalization;
  const { tried, of: all } = looked.conversations;
  const worth = rules.filter((row) => effectOf(row) !== "none" && addsUp(row, rules)).sort((one, other) => rank(one) - rank(other));
  const first = worth.find((row) => row.mode === "observe" && effectOf(row) === "saves");
  const idle = rules.filter((row) => effectOf(row) === "none" && row.rule !== ALL);
  return html`
    <p class="hint">
      Rules make prompts begin alike, so that more of them comes from the cache. What each would do, or does, was worked out beside the
      gateway for ${counted(looked.requests, "request")}${looked.requests < summary.requests &&
      ` (${percent(looked.requests / summary.requests, 0)} of all; the others could not be tried, or were left out)`};
      no rule changes a prompt until it is turned on.
    </p>
    ${tried < all &&
    html`<p class="hint">
      Rules were tried on ${count(tried)} of the last ${counted(all, "conversation")}: requests that miss tokens for an avoidable reason or that a
      rule has changed, and a sample of the other conversations (<code>explain.observed_share</code>), whose figures are scaled up.
    </p>`}
    ${worth.length > 0 &&
    html`<ul class="rules">
      ${worth.map((row) => html`<${Rule} key=${`${row.rule} ${row.mode}`} row=${row} summary=${summary} open=${row === first} />`)}
    </ul>`}
    ${worth.length === 0 && html`<p><strong>Nothing would be saved:</strong> ${idle.length ? "the rules make next to no difference." : "no rule found anything to change."}</p>`}
    ${idle.length > 0 &&
    html`<p class="hint">
      Change prompts, and make next to no difference in this window:${" "}
      ${idle.map((row, at) => html`${at > 0 && ", "}<code>${row.rule}</code> (${counted(row.requests, "request")}${row.mode === "apply" && ", on"})`)}.
    </p>`}
  `;
}

/** All together are worth a word where they bring more than the best of them alone. */
const addsUp = ({ rule, net_tokens: net }, rules) => rule !== ALL || observed(rules).every((row) => row.net_tokens < net);

/** First what is on and costs; what could be turned on, all of that together, what is on; last what had better be left off. */
function rank(row) {
  if (effectOf(row) === "costs") return row.mode === "apply" ? -1 : 3;
  if (row.mode === "apply") return 2;
  return row.rule === ALL ? 1 : 0;
}
