// A text with a button that copies it.

import { html, useRef, useState } from "../vendor/ui.js";

/** @param {{title: string, text: string}} props */
export function CopyText({ title, text }) {
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
  return html`
    <div class="titled">
      <h2>${title}</h2>
      <span><span class="hint" role="status">${said}</span> <button class="quiet" onClick=${copy}>Copy</button></span>
    </div>
    <pre class="told" ref=${shown}>${text}</pre>
  `;
}
