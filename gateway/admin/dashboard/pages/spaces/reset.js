// Asks before a space is reset, and says what that will cost.

import { html } from "../../vendor/ui.js";
import { order } from "../../core/api.js";
import { count, percent, seconds } from "../../core/format.js";
import { Dialog } from "../../parts/dialog.js";
import { Facts } from "../../parts/facts.js";
import { ownerOf } from "./words.js";

/**
 * @param {object} props
 * @param {object} props.space the one whose button was pressed
 * @param {object[]} props.listed all that are listed: the selection may hit others of them, too
 * @param {boolean} props.more whether there are some that are not listed
 * @param {{id: string, group: string}[]} props.tenants of the configuration
 * @param {(answer: object) => void} props.onDone
 */
export function ResetDialog({ space, listed, more, tenants, onDone, onClose }) {
  const selection = selectionOf(space, tenants);
  if (!selection) return html`<${NoWord} space=${space} onClose=${onClose} />`;
  const hit = listed.filter((each) => each.state === "alive" && isHit(each, space));
  const sum = (name) => hit.reduce((total, each) => total + each[name], 0);
  const requests = sum("requests");
  const tokens = sum("prompt_tokens");
  const reused = sum("cached_tokens");
  const computed = Math.max(tokens - reused, 0);
  const again = reused ? (sum("saved_prefill_seconds") / reused) * computed : null;
  const confirm = async () => onDone(await order("spaces/reset", selection));
  return html`<${Dialog} title="Reset this space?" action=${hit.length > 1 ? `Reset ${count(hit.length)} spaces` : "Reset"}
    onConfirm=${confirm} onClose=${onClose}>
    <${Facts}
      rows=${[
        ["Model", space.model],
        ["Shared by", ownerOf(space.tenant)],
        ["Scope", space.scope || "none"],
        ["Application", space.prompt || "none"],
        ["Template", html`<code>${space.template_version}</code>`],
      ]}
    />
    <p>
      That is <strong>${hit.length === 1 ? "1 living space" : `${count(hit.length)} living spaces`}</strong>
      ${hit.length > 1 && " (they differ in what a reset does not tell apart: adapter, context limit, region, tokenizer)"}${more &&
      ", and perhaps others that are not listed"}.
      ${" "}${requests === 0
        ? "No client's request was answered there yet."
        : `${count(requests)} requests with ${count(tokens)} prompt tokens were answered there; ${count(reused)} of the tokens ` +
          `(${percent(tokens ? reused / tokens : null)}) did not have to be computed.`}
    </p>
    <p>
      ${computed > 0 &&
      html`Everything that is cached there is computed again when it is next asked for: at most
        ${" "}<strong>${count(computed)} tokens</strong>${again !== null && html`, about <strong>${seconds(again)}</strong> of prefill`}.
        Until then the first tokens of its requests come later.${" "}`}
      Prefixes that were warmed have to be warmed again (<code>warm.again</code> does so by itself). It cannot be undone.
    </p>
  <//>`;
}

function NoWord({ space, onClose }) {
  return html`<${Dialog} title="No tenant of this group is configured" action="Close" onConfirm=${async () => {}} onClose=${onClose}>
    <p>
      A reset names a tenant, and ${ownerOf(space.tenant)} has none in the configuration any more. No client can use this space now: it ends by
      its times, or by a reset of its model.
    </p>
  <//>`;
}

/**
 * The body of the order; null if there is none that says it. Of a group's space any of its tenants stands for the group;
 * a space of everybody has none.
 */
function selectionOf({ model, tenant, scope, template_version, prompt }, tenants) {
  const selection = { model, scope, prompt, ...(template_version && { template_version }) };
  if (!tenant) return selection;
  if (tenant.startsWith("tenant:")) return { ...selection, tenant: tenant.slice(7) };
  const member = tenants.find((each) => `group:${each.group}` === tenant);
  return member ? { ...selection, tenant: member.id } : null;
}

const NAMES = ["model", "tenant", "scope", "template_version", "prompt"];

const isHit = (each, space) => NAMES.every((name) => each[name] === space[name]);
