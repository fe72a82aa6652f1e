// Asks for a token of the admin port.

import { html, useRef, useState } from "../vendor/ui.js";
import { ask, setToken } from "../core/api.js";
import { useTitle } from "../core/use.js";

export function SignIn({ onDone }) {
  useTitle("Sign in");
  const field = useRef(null);
  const [problem, setProblem] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setToken(field.current.value.trim());
    try {
      await ask("me");
      onDone();
    } catch (error) {
      setToken("");
      setProblem(error);
      field.current.select();
    }
  };
  return html`<form class="signin" onSubmit=${submit}>
    <h1 tabindex="-1">Sign in</h1>
    <p>
      The admin port asks for a token: <code>server.admin_token</code>, or one of <code>server.admin_tokens</code> of the
      gateway's configuration. It is kept in this tab only.
    </p>
    <label>Token <input ref=${field} type="password" autocomplete="off" required autofocus /></label>
    <button>Sign in</button>
    ${problem && html`<p class="problem" role="alert">${problem.message}</p>`}
  </form>`;
}
