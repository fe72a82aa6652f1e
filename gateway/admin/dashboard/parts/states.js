// Nothing yet, nothing at all, and what went wrong: each says what to do.

import { html } from "../vendor/ui.js";
import { clock } from "../core/format.js";

/** While the first answer is on its way. */
export const Loading = ({ what = "figures" }) => html`<p class="hint" role="status">Loading ${what}…</p>`;

/** There is an answer, and nothing in it. `children` say what to do. */
export const Empty = ({ title, children }) => html`<div class="empty">
  <h2>${title}</h2>
  ${children}
</div>`;

/** No request was tried with the rules of canonicalization: why that may be. */
export const NotLookedAt = () => html`<p>
    <strong>Not known:</strong> none of these requests was tried with the rules.
  </p>
  <p class="hint">
    That is so where every rule is <code>off</code> under <code>canon</code>, where the model has no tokenizer in the gateway
    (<code>tokenizer: engine</code>), for the first seconds after a start, and while the explanation is behind: it leaves this out first.
  </p>`;

/** Something was not answered. With `at` (milliseconds) older figures are shown meanwhile. */
export function ProblemNote({ problem, at, onRetry }) {
  if (!problem) return null;
  return html`<div class="problem" role="alert">
    <strong>${problem.message}</strong>
    ${at && html`<span>What is shown is from ${clock(at / 1000)}.</span>`}
    ${onRetry && html`<button onClick=${onRetry}>Try again</button>`}
  </div>`;
}

/**
 * Shows the answer of `useAsked`: loading, problem, or what `children` (a function of the answer) makes of it.
 * With `quiet` a problem is not shown: it is shown already.
 */
export function Asked({ asked, what, quiet = false, children }) {
  const { value, problem, at, refresh } = asked;
  return html`
    ${!quiet && html`<${ProblemNote} problem=${problem} at=${value === null ? null : at} onRetry=${refresh} />`}
    ${value !== null ? children(value) : problem ? null : html`<${Loading} what=${what} />`}
  `;
}
