// @ts-check
// Policies: who acts, who watches as shadow, how often they agree, and what the other would have gained in a replay.
import { useState } from "../vendor/hooks.js";
import { post, useAnswer } from "../api.js";
import { basis, count, percent, plural, visible, wallTime } from "../format.js";
import { html } from "../html.js";
import { Answered, Confirm, Copyable, Empty, Meter, Notice, Panel, Parts } from "../parts.js";
import { has, may } from "../session.js";
import { useTitle } from "../title.js";

/** @type {Record<string, string>} */
const TONES = { policy: "1", margin: "3", overdue: "2", out_of_range: "warn", failed: "bad", late: "4", missing: "8" };

/** @param {{shadow: any}} props */
function Agreement({ shadow }) {
  const seen = shadow.agreed + shadow.differed;
  if (!seen) return html`<${Empty}>${shadow.policy} watches, and no decision was compared yet.<//>`;
  const ratio = shadow.agreed / seen;
  const differ = `${plural(shadow.differed, "decision")} ${shadow.differed === 1 ? "differs" : "differ"}`;
  return html`<p class="sentence"><strong>${shadow.policy}</strong> would have done the same in <strong class="num">${percent(ratio, 1)}</strong> of ${plural(seen, "decision")}.</p>
    <${Meter} ratio=${ratio} label=${`agrees in ${percent(ratio, 1)}`} />
    <p class="num">${has("decisions") ? html`<a href="/decisions?differs=1">${differ}</a>` : differ}${shadow.failed ? `; it failed in ${count(shadow.failed)}` : ""}${shadow.skipped ? `; ${count(shadow.skipped)} were not compared` : ""}.</p>`;
}

/** What the other would have gained: only from a replay of the same jobs, with its interval. @param {{replay: any}} props */
function Replay({ replay }) {
  const known = typeof replay.low_ratio === "number" && typeof replay.high_ratio === "number";
  const sure = known && replay.low_ratio > 0 === replay.high_ratio > 0;
  return html`<p class="sentence">Replayed in the simulator with the same ${plural(replay.job_count, "finished job")}, the ${replay.metric} under ${replay.other} is <strong class="num">${percent(Math.abs(replay.difference_ratio), 1)} ${replay.difference_ratio < 0 ? "lower" : "higher"}</strong> than under ${replay.policy}.</p>
    <p class="num">${known ? `95 % interval of the difference: ${percent(replay.low_ratio, 1)} to ${percent(replay.high_ratio, 1)}${sure ? "." : ": no difference is shown, zero lies inside."}` : `No interval${replay.refused ? `: ${replay.refused}` : ""}. Without one this says little.`}</p>
    ${replay.name && html`<p class="quiet num">${replay.name}, ${wallTime(replay.written_unix_s)}</p>`}`;
}

/** Where a policy comes from, and its version. @param {any} policy */
function sourceOf({ source, shipped, version }) {
  const point = /^package: (.*)$/.exec(source ?? "");
  const [where, name] = shipped || !source ? ["shipped with ADLRO", ""] : point ? ["entry point of a package: ", point[1]] : ["own file: ", source];
  return html`${where}${name && html`<code>${visible(name)}</code>`}${version && html`, ${shipped ? "checkpoint" : "version"} <code>${version}</code>`}`;
}

/** Who acts stands first, then who watches. @param {any} one @param {any} other */
const first = (one, other) => Number(other.acting) - Number(one.acting) || Number(other.shadow) - Number(one.shadow);

export default function Policies() {
  useTitle("Policies");
  const answer = useAnswer("/api/policies", 3);
  const [asked, setAsked] = useState(/** @type {{act: "policy" | "shadow", name: string} | null} */ (null));
  return html`<h1>Policies</h1>
    ${asked && html`<${Confirm} title=${asked.act === "policy" ? `Let ${asked.name} decide?` : asked.name ? `Let ${asked.name} watch as shadow?` : "End the shadow?"} act=${asked.act === "policy" ? "Set policy" : "Set shadow"} typed=${asked.act === "policy" ? asked.name : ""}
      onClose=${() => setAsked(null)} onAct=${async () => {
        await post(`/api/actions/${asked.act}`, { policy: asked.name });
        answer.again();
      }}><p>${asked.act === "policy" ? "It decides from the next decision on; running jobs are not touched." : asked.name ? "It is asked beside the acting policy, and its choices are only counted." : "The acting policy's choices are compared with nobody's."}</p><//>`}
    <${Answered} answer=${answer} what="The policies" rows=${6}>${(/** @type {any} */ data) => {
      const acting = data.policies.find((/** @type {any} */ each) => each.acting);
      const parts = Object.entries(data.decisions_by_basis ?? {}).filter(([, value]) => value > 0).map(([name, value]) => ({ name: basis(name), value, tone: TONES[name] ?? "8", href: has("decisions") ? `/decisions?basis=${name}` : undefined }));
      return html`
        <${Panel} title="Who decides">
          <p class="sentence"><strong>${data.deciding_policy || acting?.name}</strong> decides${data.deciding_basis && data.deciding_basis !== "policy" ? html`: ${basis(data.deciding_basis)}` : ""}.</p>
          ${acting && data.deciding_policy && data.deciding_policy !== acting.name && html`<${Notice} level="warn">${acting.name} is set, but does not decide now: ${basis(data.deciding_basis)}.<//>`}
          ${parts.length > 0 && html`<h3>Decisions by what they rest on</h3><${Parts} label="Decisions by what they rest on" parts=${parts} />`}
        <//>
        <div class="columns">
          <${Panel} title="Shadow beside acting">${data.shadow?.policy ? html`<${Agreement} shadow=${data.shadow} />` : html`<${Empty}>No policy watches as shadow.<//>`}<//>
          ${(data.paired_replay || data.paired_command) && html`<${Panel} title="Who would have been better">${data.paired_replay
            ? html`<${Replay} replay=${data.paired_replay} />`
            : html`<p class="quiet">Nothing tells yet: agreement is no gain. A replay of the finished jobs under both policies does, with its interval; it is shown here once its document lies in the page's folder of reports (ADLRO_WEB_REPORTS_DIR).</p><${Copyable} label="Command line" text=${data.paired_command} />`}<//>`}
        </div>
        <${Panel} title="All policies">
          <ul class="policies">${[...data.policies].sort(first).map((/** @type {any} */ each) => html`<li key=${each.name}>
            <div class="title"><h3>${each.name.split(":").at(-1)}</h3>
              ${each.acting && html`<span class="badge">acting</span>`}${each.shadow && html`<span class="badge soft">shadow</span>`}
            </div>
            <div class="told">
              <p>${each.advice || each.description}</p>
              ${each.advice && html`<p class="quiet">${each.description}</p>`}
              <p class="quiet source">${sourceOf(each)}</p>
            </div>
              <div class="tools">
                ${may("policy") && !each.acting && html`<button type="button" onClick=${() => setAsked({ act: "policy", name: each.name })}>Let it decide<span class="visually-hidden"> ${each.name}</span></button>`}
                ${may("policy") && !each.acting && html`<button type="button" onClick=${() => setAsked({ act: "shadow", name: each.shadow ? "" : each.name })}>${each.shadow ? "End shadow" : "As shadow"}<span class="visually-hidden"> ${each.name}</span></button>`}
              </div>
            ${each.problem && html`<${Notice} level="warn">${each.problem}<//>`}</li>`)}</ul>
        <//>`;
    }}<//>`;
}
