// @ts-check
// The page's first module: bar with navigation and state, banners, and the screen of the address.
import { render } from "./vendor/preact.js";
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import { html } from "./html.js";
import { clusterTime } from "./format.js";
import { Notice, Skeleton, StateMark } from "./parts.js";
import { navigate, start as startRouter, usePlace } from "./router.js";
import { begin, has, live, logout, useConnection, useSession, useView } from "./session.js";
import { setTheme, theme } from "./theme.js";
import { useTitle } from "./title.js";

/** @type {[string, string, string][]} screen, path, word */
const NAVIGATION = [
  ["cluster", "/", "Cluster"],
  ["queue", "/queue", "Queue"],
  ["gantt", "/gantt", "Gantt"],
  ["decisions", "/decisions", "Decisions"],
  ["policies", "/policies", "Policies"],
  ["learning", "/learning", "Learning"],
  ["reports", "/reports", "Reports"],
  ["submit", "/submit", "Submit"],
];

/** @type {Record<string, string>} a job's page belongs to the queue, a GPU's to the cluster */
const PARENTS = { jobs: "queue", gpus: "cluster" };

/** Each screen is a module of its own that is loaded when it is first shown. @type {Record<string, () => Promise<{default: any}>>} */
const SCREENS = {
  cluster: () => import("./screens/cluster.js"),
  queue: () => import("./screens/queue.js"),
  jobs: () => import("./screens/job.js"),
  gpus: () => import("./screens/gpu.js"),
  gantt: () => import("./screens/gantt.js"),
  decisions: () => import("./screens/decisions.js"),
  policies: () => import("./screens/policies.js"),
  learning: () => import("./screens/learning.js"),
  reports: () => import("./screens/reports.js"),
  submit: () => import("./screens/submit.js"),
  login: () => import("./screens/login.js"),
};

/** @param {{screen: string}} props */
function Navigation({ screen }) {
  const here = PARENTS[screen] ?? screen;
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  // On a narrow screen the entries are wider than the bar, which shows the first of them.
  useEffect(() => {
    const box = list.current;
    const entry = box?.querySelector('[aria-current="page"]');
    if (!box || !entry) return;
    const [inside, outside] = [entry.getBoundingClientRect(), box.getBoundingClientRect()];
    if (inside.left < outside.left || inside.right > outside.right) box.scrollLeft += inside.left - outside.left - (outside.width - inside.width) / 2;
  }, [here]);
  return html`<nav aria-label="Screens"><ul ref=${list}>
    ${NAVIGATION.filter(([name]) => has(name)).map(([name, path, word]) => html`<li key=${name}>
      <a href=${path} aria-current=${name === here ? "page" : undefined}>${word}</a></li>`)}
  </ul></nav>`;
}

function ClusterClock() {
  const { data, state } = useView("head");
  if (!data) return null;
  return html`<span class=${`clock num ${state === "live" ? "" : "old"}`} title="The cluster's clock">
    <span class="visually-hidden">Cluster time </span>${clusterTime(data.time_s)}
    ${data.clock?.mode === "scaled" && html` <span class="quiet">${data.clock.scale}×</span>`}
    ${data.clock?.paused && html` <span class="quiet">paused</span>`}
  </span>`;
}

function ThemeSwitch() {
  const [chosen, setChosen] = useState(theme());
  return html`<label class="theme"><span class="visually-hidden">Colours</span>
    <select value=${chosen} onChange=${(/** @type {any} */ event) => {
      setTheme(event.target.value);
      setChosen(event.target.value);
    }}>
      <option value="system">System</option><option value="light">Light</option><option value="dark">Dark</option>
    </select></label>`;
}

/** After a login one is back where one was. */
const loginPath = () => `/login?${new URLSearchParams({ from: location.pathname + location.search })}`;

/** @param {string} text of a service, such as "this login has 10 pages open" */
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Which service is away since when, over all screens. */
function Banners() {
  const { state, text, sources } = useConnection();
  const { renewed } = useSession();
  const silent = Object.entries(sources).filter(([, source]) => source.state === "away");
  return html`<div class="banners" role="status" aria-live="polite">
    ${state === "away" && html`<${Notice} level="bad">${sentence(text || "the page's server does not answer")}; what you see is as of then. It is tried again by itself.
      ${" "}<button type="button" onClick=${() => live.retry()}>Try now</button><//>`}
    ${state === "refused" && html`<${Notice} level="bad">${sentence(text)}. <a href=${loginPath()}>Log in</a><//>`}
    ${renewed && html`<${Notice} level="warn">This page has a newer version on its server. <button type="button" onClick=${() => location.reload()}>Load it</button><//>`}
    ${state === "live" && silent.map(([name, source]) => html`<${Notice} key=${name} level="bad">
      <strong>${name}</strong> does not answer${source.error ? html`: ${source.error}` : "."} Figures that come from it are greyed.<//>`)}
  </div>`;
}

/** @param {{path: string}} props */
function NoScreen({ path }) {
  useTitle("No such page");
  return html`<h1 tabindex="-1">No such page</h1><p>Nothing is shown at <code>${path}</code>. <a href="/">To the cluster</a></p>`;
}

function Logout() {
  const [error, setError] = useState("");
  const end = () => {
    setError("");
    logout().catch((problem) => setError(problem.message));
  };
  return html`<button type="button" onClick=${end}>Log out</button>
    ${error && html`<span role="alert">You are still logged in: ${error}</span>`}`;
}

/** @param {{name: string, place: import("./router.js").Place}} props */
function Screen({ name, place }) {
  const [loaded, setLoaded] = useState(/** @type {{name: string, part: any, error: string}} */ ({ name: "", part: null, error: "" }));
  useEffect(() => {
    let wanted = true;
    SCREENS[name]?.().then(
      (module) => wanted && setLoaded({ name, part: module.default, error: "" }),
      () => wanted && setLoaded({ name, part: null, error: "This part of the page could not be loaded. Load the page again." }),
    );
    return () => {
      wanted = false;
    };
  }, [name]);
  if (!SCREENS[name]) return html`<${NoScreen} path=${place.id} />`;
  if (loaded.name !== name) return html`<${Skeleton} what="The screen" rows=${6} />`;
  if (loaded.error) return html`<${Notice} level="bad" role="alert">${loaded.error}<//>`;
  return html`<${loaded.part} key=${name + place.id} id=${place.id} query=${place.query} />`;
}

function Page() {
  const place = usePlace();
  const { me, asked, error, login } = useSession();
  const connection = useConnection();
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const first = useRef(true);
  const name = login && place.screen !== "login" ? "login" : place.screen;
  // A new screen is told to screen readers by the focus on it, but not at the first load.
  useEffect(() => {
    if (first.current) first.current = false;
    else main.current?.focus();
  }, [name, place.id]);
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <header class="bar">
      <a class="brand" href="/"><span aria-hidden="true" class="mark"></span>ADLRO</a>
      ${me && html`<${Navigation} screen=${place.screen} />`}
      <div class="bar-end">
        ${me && html`<${ClusterClock} />`}
        ${me?.users_known && html`<span class="who">${me.user} <span class="quiet">${me.roles.join(", ")}</span></span>
          <${Logout} />`}
        <${ThemeSwitch} />
        ${me && html`<span role="status"><${StateMark} state=${connection.silent ? "stale" : connection.state} since_ms=${connection.silent ? connection.heard_ms : connection.since_ms} text=${connection.text} /></span>`}
      </div>
    </header>
    ${me && html`<${Banners} />`}
    <main id="main" tabindex="-1" ref=${main}>
      ${!asked
        ? error
          ? html`<${Notice} level="bad" role="alert">${error} It is tried again every 2 s.<//>`
          : html`<${Skeleton} what="The page" rows=${6} />`
        : !me && !login
          ? html`<${Notice} level="bad" role="alert">${error}<//>`
          : html`<${Screen} name=${name} place=${place} />`}
    </main>`;
}

startRouter();
addEventListener("keydown", (event) => {
  // "/" goes to the screen's search box, as in many tools.
  if (event.key !== "/" || event.ctrlKey || event.metaKey || /** @type {Element} */ (event.target).matches?.("input, textarea, select")) return;
  const box = document.querySelector("input[type=search]");
  if (box instanceof HTMLElement) {
    event.preventDefault();
    box.focus();
  }
});
const place = /** @type {Element} */ (document.getElementById("app"));
place.replaceChildren();
render(html`<${Page} />`, place);
void begin();
export { navigate };
