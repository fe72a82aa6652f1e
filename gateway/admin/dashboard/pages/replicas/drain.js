// Takes a replica out of use, and back.

import { html, useState } from "../../vendor/ui.js";
import { order } from "../../core/api.js";
import { counted } from "../../core/format.js";
import { Dialog } from "../../parts/dialog.js";

/**
 * @param {object} props
 * @param {object} props.replica as `GET replicas` has it
 * @param {object[]} props.replicas all of them
 * @param {() => void} props.onDone
 */
export function Drain({ replica, replicas, onDone }) {
  const [asks, setAsks] = useState(false);
  const { id, draining_because: causes } = replica;
  const ordered = causes.includes("operator");
  if (causes.length && !ordered) return null; // it is not up to this page
  const send = async () => {
    await order("replicas/drain", { replica: id, drain: !ordered });
    onDone();
  };
  return html`
    <button class="quiet" aria-label=${ordered ? `Use ${id} again` : `Drain ${id}`}
      onClick=${() => setAsks(true)}>${ordered ? "Use again…" : "Drain…"}</button>
    ${asks &&
    html`<${Dialog} title=${ordered ? `Use ${id} again?` : `Drain ${id}?`} action=${ordered ? "Use again" : "Drain"} onConfirm=${send}
      onClose=${() => setAsks(false)}>
      ${ordered ? html`<${Back} causes=${causes} />` : html`<${Out} replica=${replica} replicas=${replicas} />`}
    <//>`}
  `;
}

function Out({ replica, replicas }) {
  const { id, model, requests } = replica;
  const others = replicas.filter((other) => other.model === model && other.id !== id && other.accepts);
  return html`
    <p>
      It gets no more requests. ${requests ? `The ${counted(requests, "request")} that it has now end as they began.` : "It has none now."}
      ${" "}What only its cache holds is computed again elsewhere.
    </p>
    ${others.length === 0 &&
    html`<p class="warned">No other replica of ${model} takes requests: its clients are refused (503) until one does.</p>`}
    <p class="hint">
      With a shared Redis every gateway does so until the order is withdrawn; without one only this gateway does, until it is restarted.
      For good, set <code>drain: true</code> in the replica's configuration.
    </p>
  `;
}

const Back = ({ causes }) => html`<p>
  ${causes.length > 1
    ? "It drains for another reason as well, and goes on to: this takes back only what was ordered here."
    : "It gets requests again at once."}
</p>`;
