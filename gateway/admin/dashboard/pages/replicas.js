// The replicas: how they are, how busy, what the gateway has recorded of their caches, and what is warm where.

import { html } from "../vendor/ui.js";
import { count } from "../core/format.js";
import { useAsked, useTitle } from "../core/use.js";
import { Asked, Empty } from "../parts/states.js";
import { ReplicaCard } from "./replicas/card.js";
import { HeatMap } from "./replicas/heat.js";
import { Warming } from "./replicas/warming.js";

export function Replicas({ me }) {
  useTitle("Replicas");
  const asked = useAsked("replicas");
  const replicas = asked.value?.replicas ?? [];
  return html`
    <h1 tabindex="-1">Replicas</h1>
    <${Asked} asked=${asked} what="replicas">
      ${() =>
        replicas.length
          ? html`<${Fleet} replicas=${replicas} onDrained=${me?.role === "operate" ? asked.refresh : null} />`
          : html`<${Nothing} />`}
    <//>
    ${replicas.length > 0 && html`<${HeatMap} replicas=${replicas} /><${Warming} replicas=${replicas} me=${me} />`}
  `;
}

function Fleet({ replicas, onDrained }) {
  const models = [...new Set(replicas.map((replica) => replica.model))];
  return models.map((model) => {
    const own = replicas.filter((replica) => replica.model === model);
    const ready = own.filter((replica) => replica.accepts).length;
    return html`<section key=${model} aria-label=${`Replicas of ${model}`}>
      <div class="titled head">
        <h2>${model}</h2>
        <span class="hint" role="status">${count(ready)} of ${count(own.length)} take requests</span>
      </div>
      <div class="cards">
        ${own.map((replica) => html`<${ReplicaCard} key=${replica.id} replica=${replica} replicas=${own} onDrained=${onDrained} />`)}
      </div>
    </section>`;
  });
}

const Nothing = () => html`<${Empty} title="No replicas">
  <p>Name them in the gateway's configuration, under <code>models[].replicas</code>.</p>
<//>`;
