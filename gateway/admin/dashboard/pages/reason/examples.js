// The last requests that have a reason, and what exactly happened in one of them.

import { html, useRef } from "../../vendor/ui.js";
import { here, link } from "../../core/address.js";
import { ago, count, moment, percent } from "../../core/format.js";
import { useAsked } from "../../core/use.js";
import { DifferenceView } from "../../parts/difference.js";
import { Asked } from "../../parts/states.js";

const LISTED = 12;

/** @param {{at: object, text: object, quiet: boolean}} props text: the reason, as the catalog has it; quiet: as `Asked` */
export function Examples({ at, text, quiet }) {
  const list = useAsked("requests", { ...at.filters, reason: text.code, limit: LISTED });
  return html`<section class="card" aria-labelledby="examples">
    <h2 id="examples">Examples</h2>
    <${Asked} asked=${list} what="examples" quiet=${quiet}>
      ${({ requests }) => html`<${Chosen} at=${at} text=${text} requests=${requests} loading=${list.loading} />`}
    <//>
  </section>`;
}

function Chosen({ at, text, requests, loading }) {
  const { code } = text;
  const filters = JSON.stringify([code, at.filters]);
  const first = useRef({ id: "", filters: "" });
  // The list moves on; what one is reading stays.
  if (!loading && (!first.current.id || first.current.filters !== filters)) {
    const clearest = requests.find((row) => row.reason === code) ?? requests[0];
    first.current = { id: clearest?.id ?? "", filters };
  }
  const id = at.query.get("example") ?? first.current.id;
  if (!id) {
    return html`<p>None of the requests that are still kept has it${Object.keys(at.filters).length ? ", with these filters" : ""}.
      ${" "}Only the last ones are kept with their details (<code>explain.journal_requests</code>).</p>`;
  }
  return html`<div class="examples">
    <ol class="plain" aria-label=${`The last requests with “${text.title}”`}>
      ${requests.map(
        (row) => html`<li key=${row.id}>
          <a href=${here({ example: row.id })} aria-current=${row.id === id ? "true" : null}>
            <strong>${row.source}</strong>${row.turn ? `, turn ${row.turn}` : ""}
            <span class="hint" title=${moment(row.at)}>${ago(row.at)}</span>
            <span class="hint">
              ${row.reason === code
                ? `${count(row.reason_tokens)} of ${count(row.prompt_tokens)} tokens for this`
                : `${count(row.prompt_tokens)} tokens, ${percent(row.hits / row.prompt_tokens, 0)} from cache`}
            </span>
          </a>
        </li>`,
      )}
    </ol>
    <${Example} key=${id} id=${id} code=${text.code} isDifference=${text.rung === "reusable"} />
  </div>`;
}

function Example({ id, code, isDifference }) {
  const request = useAsked(`requests/${encodeURIComponent(id)}`, {}, 0);
  return html`<div class="example">
    <${Asked} asked=${request} what="the example">
      ${(value) => html`<${Detail} request=${value} code=${code} isDifference=${isDifference} />`}
    <//>
  </div>`;
}

function Detail({ request, code, isDifference }) {
  const { id, difference, reference, missed } = request;
  const lost = missed.find((each) => each.reason === code);
  return html`
    <p>
      <a href=${link(["requests", id])}>Request <code>${id}</code></a> by ${request.source} (${request.tenant}, ${request.model}),
      ${" "}${moment(request.at)}.${" "}
      ${lost
        ? html`<strong>${count(lost.tokens)} of ${count(request.prompt_tokens)}</strong> prompt tokens were computed again for this
            reason, ${lost.evidence === "confirmed" ? "as the engine bears out" : "as predicted"}${lost.note && `: ${lost.note}`}.`
        : html`Nothing was computed again for this reason.`}
    </p>
    ${difference &&
    difference.reason !== code &&
    html`<p class="hint">
      Its first difference has another reason: <a href=${link(["reasons", difference.reason])}>${title(missed, difference.reason)}</a>.
    </p>`}
    ${(difference || isDifference) && html`<${DifferenceView} difference=${difference} reference=${reference} />`}
  `;
}

const title = (missed, code) => missed.find((each) => each.reason === code)?.title ?? code;
