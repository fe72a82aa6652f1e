// A page that fails in the browser says so, instead of leaving nothing.

import { Component, html } from "../vendor/ui.js";

export class Guard extends Component {
  state = { error: null };

  static getDerivedStateFromError(error) {
    return { error };
  }

  render({ children }, { error }) {
    if (!error) return children;
    return html`<div class="problem" role="alert">
      <h1 tabindex="-1">This page failed</h1>
      <p>That is a fault of the dashboard: ${String(error.message ?? error)}</p>
      <p><button onClick=${() => location.reload()}>Load it again</button></p>
    </div>`;
  }
}
