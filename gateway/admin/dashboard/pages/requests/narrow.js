// Which of the requests are listed, beyond what the bar's filters say: those with one reason, those of one session.

import { html, useRef } from "../../vendor/ui.js";
import { here, open } from "../../core/address.js";

/** @param {{reason: string, session: string, catalog: {reasons: Map, rungs: Map}}} props empty: any */
export function Narrow({ reason, session, catalog }) {
  const field = useRef(null);
  const known = [...catalog.reasons.values()];
  const submit = (event) => {
    event.preventDefault();
    open(here({ session: field.current.value.trim() }));
  };
  return html`<form class="filters" aria-label="Which requests" onSubmit=${submit}>
    <label>
      <span class="sr">Reason</span>
      <select value=${reason} class=${reason ? "set" : ""} onChange=${(event) => open(here({ reason: event.target.value }))}>
        <option value="">Reason: all</option>
        ${[...catalog.rungs.values()].map(({ rung, title }) => {
          const codes = known.filter((each) => each.rung === rung);
          return codes.length > 0 && html`<optgroup label=${title}>${codes.map(({ code, title }) => html`<option value=${code}
            selected=${code === reason}>${title}</option>`)}</optgroup>`;
        })}
      </select>
    </label>
    <label>
      <span class="sr">Session</span>
      <input ref=${field} key=${session} type="search" defaultValue=${session} class=${session ? "set" : ""} placeholder="Session id"
        autocomplete="off" spellcheck=${false} />
    </label>
    <button class="quiet">Find session</button>
  </form>`;
}
