// A text with a button that copies it.

import { html, useRef, useState } from "../vendor/ui.js";

/**
 * A section's text.
 * @param {{title: string, text: string}} props
 */
export function CopyText({ title, text }) {
  const { shown, button } = useCopy(text, title);
  return html`
    <div class="titled">
      <h2>${title}</h2>
      ${button}
    </div>
    <pre class="copied" ref=${shown}>${text}</pre>
  `;
}

/**
 * Lines for a file, within a text.
 * @param {{name: string, text: string}} props name: what they are, for screen readers: there may be many on a page
 */
export function CopyLines({ name, text }) {
  const { shown, button } = useCopy(text, name);
  return html`<div class="lines">
    <pre class="window" ref=${shown}>${text}</pre>
    ${button}
  </div>`;
}

function useCopy(text, name) {
  const shown = useRef(null);
  const [said, say] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied.");
    } catch {
      // Browsers let pages write there on https and loopback only.
      getSelection().selectAllChildren(shown.current);
      say("Selected: copy it with your keyboard.");
    }
  };
  const button = html`<span>
    <span class="hint" role="status">${said}</span> <button class="quiet" aria-label=${`Copy: ${name}`} onClick=${copy}>Copy</button>
  </span>`;
  return { shown, button };
}
