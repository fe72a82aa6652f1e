// Why tokens of a request were computed again, and what to do about each of the reasons.

import { html } from "../../vendor/ui.js";
import { count, gpu, percent } from "../../core/format.js";
import { ReasonName, Remedy } from "../../parts/reason.js";
import { StackTable } from "../../parts/stack.js";

const COLUMNS = [
  { title: "Reason" },
  { title: "Tokens", number: true },
  { title: "Of the prompt", number: true },
  { title: "GPU time", number: true },
  { title: "What to do" },
];

/** @param {{missed: object[], hint: ?object, promptTokens: number, reasons: Map<string, object>}} props missed, hint: as `GET requests/{id}` has them */
export function Missed({ missed, hint, promptTokens, reasons }) {
  if (!missed.length) return html`<p>Nothing was computed again that could have been reused.</p>`;
  const rows = missed.map((each) => ({
    key: each.reason,
    cells: [
      html`<${ReasonName} code=${each.reason} title=${each.title} rung=${reasons.get(each.reason)?.rung} />`,
      count(each.tokens),
      percent(each.tokens / promptTokens),
      gpu(each.gpu_seconds),
      html`<span>
        ${each.advice} ${hint?.advice === each.advice && hint.gain}
        <span class="note">
          Who can: <${Remedy} remedy=${each.remedy} />.
          ${each.evidence === "confirmed" ? " The engine's report bears it out." : " As the gateway believes."}${each.note && ` (${each.note})`}
        </span>
      </span>`,
    ],
  }));
  return html`<${StackTable} caption="Tokens computed again, by reason" columns=${COLUMNS} rows=${rows} />`;
}
