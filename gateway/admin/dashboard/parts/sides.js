// Two texts side by side, with what differs marked.

import { html } from "../vendor/ui.js";

/**
 * @param {object} props
 * @param {string} props.before
 * @param {string} props.after
 * @param {any} props.beforeTitle
 * @param {any} props.afterTitle
 * @param {any} [props.belowBefore] what stands below the text
 * @param {any} [props.belowAfter]
 */
export function Sides({ before, after, beforeTitle, afterTitle, belowBefore = null, belowAfter = null }) {
  const parts = changedParts(before, after);
  return html`<div class="sides">
    <${Side} title=${beforeTitle} parts=${parts?.before} text=${before} below=${belowBefore} />
    <${Side} title=${afterTitle} parts=${parts?.after} text=${after} below=${belowAfter} />
  </div>`;
}

function Side({ title, parts, text, below }) {
  return html`<section>
    <h3>${title}</h3>
    ${text
      ? html`<pre class="window">${parts ? [lines(parts[0]), parts[1] && html`<mark>${lines(parts[1])}</mark>`, lines(parts[2])] : lines(text)}</pre>`
      : html`<p class="hint">No text here.</p>`}
    ${below}
  </section>`;
}

/**
 * What two texts begin and end with is left unmarked; null if that leaves nothing in either.
 * @returns {{before: [string, string, string], after: [string, string, string]}|null} front, changed, back
 */
function changedParts(before, after) {
  if (!before || !after || before === after) return null;
  const shorter = Math.min(before.length, after.length);
  let front = 0;
  while (front < shorter && before[front] === after[front]) front += 1;
  let back = 0;
  while (back < shorter - front && before.at(-1 - back) === after.at(-1 - back)) back += 1;
  const cut = (text) => [text.slice(0, front), text.slice(front, text.length - back), text.slice(text.length - back)];
  return { before: cut(before), after: cut(after) };
}

/** Line ends are seen, and still end the line. */
const lines = (text) => text.replaceAll("\n", "⏎\n");
