// What is around every page: the bar with its links, the window and the filters, who is signed in.

import { html, useEffect, useState } from "./vendor/ui.js";
import { link, useAddress } from "./core/address.js";
import { SIGN_IN, hasToken, setToken } from "./core/api.js";
import { THEME_CHANGED, theme, toggleTheme } from "./core/theme.js";
import { useAsked } from "./core/use.js";
import { Filters } from "./parts/filters.js";
import { Guard } from "./parts/guard.js";
import { Loading } from "./parts/states.js";
import { Overview } from "./pages/overview.js";
import { ReasonPage } from "./pages/reason.js";
import { Replicas } from "./pages/replicas.js";
import { RequestPage } from "./pages/request.js";
import { Requests } from "./pages/requests.js";
import { SignIn } from "./pages/signin.js";
import { Spaces } from "./pages/spaces.js";

const TABS = [
  { name: "", title: "Overview" },
  { name: "requests", title: "Requests" },
  { name: "replicas", title: "Replicas" },
  { name: "spaces", title: "Spaces" },
];

export function Shell() {
  const at = useAddress();
  const [signIn, askSignIn] = useState(false);
  const me = useAsked(signIn ? null : "me", {}, 60);
  useEffect(() => {
    const needed = () => askSignIn(true);
    addEventListener(SIGN_IN, needed);
    return () => removeEventListener(SIGN_IN, needed);
  }, []);
  const page = at.path[0] ?? "";
  if (signIn) {
    return html`<${Bar} page=${page} bare />
      <main id="content"><${SignIn} onDone=${() => askSignIn(false)} /></main>`;
  }
  if (me.value === null && me.problem === null) {
    // Nothing else is asked before it is known whether a token is needed.
    return html`<${Bar} page=${page} bare />
      <main id="content"><${Loading} what="the dashboard" /></main>`;
  }
  return html`
    <${Bar} page=${page} me=${me.value} onSignOut=${() => (setToken(""), askSignIn(true))} />
    <main id="content">
      <${Guard} key=${location.pathname}><${Page} at=${at} me=${me.value} /><//>
    </main>
  `;
}

function Page({ at, me }) {
  const [page = "", id] = at.path;
  if (page === "" || (page === "reasons" && !id)) return html`<${Overview} at=${at} />`;
  if (page === "reasons") return html`<${ReasonPage} at=${at} code=${id} />`;
  if (page === "requests") return id ? html`<${RequestPage} id=${at.path.slice(1).join("/")} />` : html`<${Requests} at=${at} />`;
  if (page === "replicas") return html`<${Replicas} at=${at} me=${me} />`;
  if (page === "spaces") return html`<${Spaces} at=${at} me=${me} />`;
  return html`<h1 tabindex="-1">Nothing here</h1>
    <p>There is no page at ${location.pathname}. <a href=${link([])}>Go to the overview.</a></p>`;
}

/** `bare`: without a sign-in there is nothing to choose from. */
function Bar({ page, me, bare, onSignOut }) {
  const [shown, set] = useState(theme());
  useEffect(() => {
    const changed = () => set(theme());
    addEventListener(THEME_CHANGED, changed);
    return () => removeEventListener(THEME_CHANGED, changed);
  }, []);
  const other = shown === "dark" ? "light" : "dark";
  const current = page === "reasons" ? "" : page;
  return html`
    <a class="skip" href="#content">Skip to the page</a>
    <header class="bar">
      <a class="brand" href=${link([])}>Prefix Gateway</a>
      <nav aria-label="Pages">
        ${TABS.map(
          (tab) =>
            html`<a href=${link(tab.name ? [tab.name] : [])} aria-current=${tab.name === current ? "page" : null}>${tab.title}</a>`,
        )}
      </nav>
      ${!bare && html`<${Filters} />`}
      <span class="end">
        ${me?.id && html`<span class="hint">${me.id}${me.role === "read" ? " (may only look)" : ""}</span>`}
        ${me && hasToken() && html`<button class="quiet" onClick=${onSignOut}>Sign out</button>`}
        <button class="quiet" aria-label=${`Show in ${other} colours`} onClick=${toggleTheme}>
          ${shown === "dark" ? "☀" : "☾"}
        </button>
      </span>
    </header>
  `;
}
