// Replicas whose prompts have other tokens than the gateway's: predictions for them are wrong.

import { html } from "../../vendor/ui.js";

export function PromptFindings({ replicas }) {
  const found = replicas.filter((replica) => replica.prompt_finding);
  if (!found.length) return null;
  return html`<section class="card" aria-labelledby="prompt-findings">
    <h2 id="prompt-findings">Prompts that the gateway does not know</h2>
    <ul class="plain">
      ${found.map((replica) => html`<li><span class="chip">${replica.id}</span> ${replica.prompt_finding}</li>`)}
    </ul>
  </section>`;
}
