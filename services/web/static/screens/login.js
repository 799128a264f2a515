// @ts-check
// Login: a token once, in exchange for a session. The token is in no address and no storage of the page.
import { useState } from "../vendor/hooks.js";
import { html } from "../html.js";
import { Notice } from "../parts.js";
import { navigate } from "../router.js";
import { login, useSession } from "../session.js";
import { useTitle } from "../title.js";

/** Where one came from, if that is a place of this page. */
function placeBefore() {
  const from = new URLSearchParams(location.search).get("from") ?? "/";
  const url = new URL(from, location.origin);
  return from.startsWith("/") && url.origin === location.origin && url.pathname !== "/login" ? url.pathname + url.search : "/";
}

export default function Login() {
  useTitle("Login");
  const { me } = useSession();
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      await login(token.trim());
      if (location.pathname === "/login") navigate(placeBefore(), { replace: true });
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
    }
    setBusy(false);
  };
  if (me && !me.users_known) return html`<h1>Login</h1><p>This suite has no users: everybody may look. <a href="/">To the cluster</a></p>`;
  return html`<form class="login" onSubmit=${submit}>
    <h1>Log in</h1>
    <p>Your token is the text in the file that <code>adlro token</code> wrote for you. It is exchanged for a session; the page keeps no copy.</p>
    <label class="field">Token
      <input type="password" name="token" autocomplete="current-password" spellcheck=${false} required value=${token}
        aria-invalid=${error ? "true" : undefined} aria-describedby=${error ? "login-error" : undefined}
        onInput=${(/** @type {any} */ event) => setToken(event.target.value)} /></label>
    ${error && html`<div id="login-error"><${Notice} level="bad" role="alert">${error}<//></div>`}
    <button type="submit" class="primary" disabled=${busy || !token.trim()}>Log in</button>
  </form>`;
}
