// The last requests, as they come.

import { html, useState } from "../vendor/ui.js";
import { FILTERS, here, open } from "../core/address.js";
import { count } from "../core/format.js";
import { useTitle } from "../core/use.js";
import { useCatalog } from "../parts/catalog.js";
import { DecisionLegend } from "../parts/decision.js";
import { Empty, Loading, ProblemNote } from "../parts/states.js";
import { useFeed } from "./requests/feed.js";
import { MOST_ROWS } from "./requests/kept.js";
import { Narrow } from "./requests/narrow.js";
import { RequestsTable } from "./requests/table.js";

const ALL = Object.fromEntries([...FILTERS, "reason", "session"].map((name) => [name, null]));

export function Requests({ at }) {
  useTitle("Requests");
  const catalog = useCatalog();
  const reason = at.query.get("reason") ?? "";
  const session = at.query.get("session") ?? "";
  const paused = at.query.has("paused");
  // Rows must not move under the pointer or the focus of a reader: from when it gets to the table until it
  // leaves the card, which has the button that shows the new ones.
  const [pointed, setPointed] = useState(false);
  const [focused, setFocused] = useState(false);
  const query = { ...at.filters, ...(reason && { reason }), ...(session && { session }) };
  const feed = useFeed(query, paused || pointed || focused);
  const narrowed = Object.keys(query).length > 0;
  const leaves = (event) => !event.currentTarget.contains(event.relatedTarget);
  return html`
    <div class="titled">
      <h1 tabindex="-1">Requests</h1>
      <${Narrow} reason=${reason} session=${session} catalog=${catalog} />
    </div>
    <${FeedProblem} feed=${feed} />
    ${feed.shown === null
      ? feed.problem
        ? null
        : html`<${Loading} what="requests" />`
      : html`<section
          class="card"
          aria-label="Requests"
          aria-busy=${feed.stale}
          onMouseLeave=${() => setPointed(false)}
          onFocusIn=${(event) => setFocused(event.target.closest("tbody") !== null)}
          onFocusOut=${(event) => leaves(event) && setFocused(false)}
        >
          <${Toolbar} feed=${feed} paused=${paused} session=${session} onGoOn=${() => setPointed(false)} />
          ${feed.shown.length
            ? html`<div class="sideways" onMouseMove=${() => setPointed(true)}><${RequestsTable} rows=${feed.shown}
              reasons=${catalog.reasons} /></div>
                <p class="hint">At most ${MOST_ROWS} are listed. How many the gateway keeps: <code>explain.journal_requests</code>.</p>`
            : html`<${Nothing} narrowed=${narrowed} />`}
        </section>
        <${DecisionLegend} />`}
  `;
}

function Toolbar({ feed, paused, session, onGoOn }) {
  const { stale, waiting, came, lost, perSecond, showWaiting } = feed;
  const toggle = () => {
    if (paused) onGoOn();
    open(here({ paused: paused ? null : "1" }), { replace: true });
  };
  return html`<div class="titled toolbar">
    <span role="status">
      <i class=${`pulse ${paused || lost || stale ? "" : "on"}`}></i>
      ${stale ? "Loading…" : paused ? "Paused" : lost ? "Not connected" : session ? "Followed, every few seconds" : "Live"}
      ${!session && !lost && !stale && perSecond !== null && `: ${rate(perSecond)}`}
    </span>
    <span class="buttons">
      ${waiting.length > 0 && html`<button onClick=${showWaiting}>Show ${count(came)} new</button>`}
      <button class="quiet" onClick=${toggle}>
        ${paused ? "Go on" : "Pause"}
      </button>
    </span>
  </div>`;
}

function FeedProblem({ feed }) {
  const { problem, lost, shown, again } = feed;
  if (!problem) return null;
  if (!lost) return html`<${ProblemNote} problem=${problem} onRetry=${again} />`;
  return html`<div class="problem" role="alert">
    <strong>${problem.message}</strong>
    <span>It is tried again by itself${shown && "; what is listed is from before"}.</span>
    <button onClick=${again}>Try now</button>
  </div>`;
}

function Nothing({ narrowed }) {
  if (narrowed) {
    return html`<${Empty} title="None of the requests that are kept">
      <p>None of them passes all filters. New ones that do will appear here.</p>
      <p><a href=${here(ALL)}>Show all requests</a></p>
    <//>`;
  }
  return html`<${Empty} title="No requests yet">
    <p>
      Send one to the gateway's public port, as to an OpenAI API: it appears here about a second after its answer. Requests
      are forgotten when the gateway restarts, and after <code>explain.journal_ttl_seconds</code>.
    </p>
  <//>`;
}

/** Rounded, so that what is read aloud does not change all the time. */
function rate(perSecond) {
  if (perSecond === 0) return "nothing in the last 10 seconds";
  if (perSecond < 1) return "less than one request a second";
  const rounded = perSecond < 10 ? Math.round(perSecond) : Number(perSecond.toPrecision(1));
  return `about ${count(rounded)} ${rounded === 1 ? "request" : "requests"} a second`;
}
