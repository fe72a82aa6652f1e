// The figures one looks at first.

import { html } from "../../vendor/ui.js";
import { halves } from "../../core/columns.js";
import { brief, count, gpu, money, percent, points, seconds } from "../../core/format.js";
import { Figure, Figures } from "../../parts/figure.js";

export function Headline({ summary, series }) {
  const { hits, prompt_tokens, ttft, saved, lost, avoidable, price } = summary;
  const paid = (worth) => worth.money !== null && html`${money(worth.money, price.currency)}${" · "}`;
  const reachable = avoidable.tokens / prompt_tokens;
  return html`<section class="card" aria-label="Headline figures">
    <${Figures}>
      <${Figure}
        name="Hit rate"
        value=${percent(summary.hit_rate)}
        note=${html`<${Trend} halves=${series && halves(series.buckets)} />`}
      />
      <${Figure} name="Served from cache" value=${brief(hits)} exact=${count(hits)} note=${served(summary)} />
      <${Figure} name="First token warm, p50" value=${seconds(ttft.warm.p50)} note=${tail(ttft.warm, "at least half of the prompt came from the cache")} />
      <${Figure} name="First token cold, p50" value=${seconds(ttft.cold.p50)} note=${tail(ttft.cold, "less than half of the prompt came from the cache")} />
      <${Figure} name="GPU time saved" value=${gpu(saved.gpu_seconds)} note=${html`${paid(saved)}by the cache`} />
      <${Figure}
        name="GPU time still lost"
        value=${gpu(lost.gpu_seconds)}
        note=${html`${paid(lost)}computing ${brief(lost.tokens)} tokens`}
      />
      <${Figure}
        name="Of that, avoidable"
        value=${gpu(avoidable.gpu_seconds)}
        tone=${reachable >= 0.05 ? "bad" : ""}
        note=${html`${paid(avoidable)}up to ${points(reachable)} of hit rate`}
      />
    <//>
  </section>`;
}

function Trend({ halves }) {
  if (!halves) return "no trend yet";
  const change = halves.second - halves.first;
  const words = "second half of the window against the first";
  if (Math.abs(change) < 0.0005) return html`<span title=${words}>no change, second half against first</span>`;
  const exact = `${words}: ${percent(halves.first)} → ${percent(halves.second)}`;
  const amount = `${change > 0 ? "▲" : "▼"} ${points(Math.abs(change))}`;
  return html`<span title=${exact}>
    <strong class=${change > 0 ? "good" : "bad"}>${amount}</strong>, second half against first
  </span>`;
}

function served({ prompt_tokens, hits, hits_predicted }) {
  const total = html`<span title=${count(prompt_tokens)}>of ${brief(prompt_tokens)} prompt tokens</span>`;
  if (!hits_predicted) return total;
  return html`${total}; ${percent(hits_predicted / hits, 0)} of it predicted, the engine does not report`;
}

function tail({ requests, p95, p99 }, which) {
  if (!requests) return html`<span title=${`Streams of which ${which}`}>no streams</span>`;
  return html`<span title=${`${count(requests)} streams of which ${which}`}>
    <span class="one">p95 ${seconds(p95)}</span> · <span class="one">p99 ${seconds(p99)}</span>
  </span>`;
}
