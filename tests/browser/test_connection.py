"""The page's one connection: when it is made anew, what is old meanwhile, and what the server says as it ends.

The first tests give `live.js` sockets that are not there, and a clock, so that a dead connection takes no minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import VERSION, FakePageServer, fake_page_server
from tests.browser.test_live import figure, until

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PARTS = """
window.parts = async (path) => {
  const { Live } = await import(path);
  class Socket {
    constructor() { this.readyState = 0; this.sent = []; this.closes = 0; made.push(this); }
    send(text) { this.sent.push(JSON.parse(text)); }
    // As chromium does for a peer that is gone: the end is told a minute later.
    close() { this.closes += 1; this.readyState = 2; }
    say(message) { this.readyState = 1; this.onmessage({ data: JSON.stringify(message) }); }
    frame(header) {
      const text = new TextEncoder().encode(JSON.stringify(header));
      const bytes = new Uint8Array(5 + text.length);
      new DataView(bytes.buffer).setUint32(1, text.length, true);
      bytes.set(text, 5);
      this.onmessage({ data: bytes.buffer });
    }
    end() { this.readyState = 3; this.onclose({}); }
  }
  const made = [];
  const clock = { ms: 1e6 };
  const rest = (ms = 10) => new Promise((done) => setTimeout(done, ms));
  // The look at the connection each second, when the test wants it.
  const start = (live) => {
    const timer = window.setInterval;
    let look;
    window.setInterval = (each) => { look = each; return 0; };
    live.start();
    window.setInterval = timer;
    return look;
  };
  const make = (more = {}) => new Live({ open: () => new Socket(), now: () => clock.ms, random: () => 0, ...more });
  const snapshot = (key, data, rev = 1) => ({ key, kind: "snapshot", rev, data });
  return { make, made, clock, rest, start, snapshot };
};
"""


@pytest.fixture
def run(server: FakePageServer, watched: Callable[..., Watched]) -> Callable[[str], Any]:
    """Runs a script that has the parts above by their names; the answer is what it returns."""
    page = watched(server.url).open("/nothing")
    page.evaluate(f"() => {{{PARTS}}}")

    def run_script(text: str) -> Any:
        return page.evaluate(f"""async () => {{
          const {{ make, made, clock, rest, start, snapshot }} = await parts("/static/{VERSION}/live.js");
          {text}
        }}""")

    return run_script


def test_a_dead_connection_is_replaced_at_once(run: Callable[[str], Any]) -> None:
    found = run("""
      const live = make();
      const look = start(live);
      made[0].say({ op: "hello", epoch: "a" });
      await rest();
      clock.ms += 16_000;
      look();
      await rest();
      const then = live.state;
      await rest(400);
      made[1].say({ op: "hello", epoch: "a" });
      await rest();
      made[0].say({ op: "bye", reason: "role", text: "of the old one" });
      await rest();
      const found = [then, made.length, made[0].closes, live.state];
      live.stop();
      return found;
    """)
    assert found == ["away", 2, 1, "live"]


@pytest.mark.parametrize("answers", [False, True])
def test_a_connection_that_does_not_come_about_is_replaced(run: Callable[[str], Any], answers: bool) -> None:
    # One stays connecting; the other is open, and is never greeted.
    found = run(f"""
      const live = make();
      const look = start(live);
      if ({str(answers).lower()}) made[0].readyState = 1;
      clock.ms += 14_000;
      look();
      const before = made.length;
      clock.ms += 2_000;
      look();
      await rest(400);
      const found = [before, made.length, made[0].closes];
      live.retry();
      found.push(made.length, made[1].closes, live.socket === made[2]);
      live.stop();
      return found;
    """)
    assert found == [1, 2, 1, 3, 1, True]


def test_figures_of_another_process_are_old_until_its_own_come(run: Callable[[str], Any]) -> None:
    found = run("""
      const live = make();
      start(live);
      live.subscribe("queue", () => undefined);
      made[0].say({ op: "hello", epoch: "a" });
      made[0].frame(snapshot("queue", { total: 640, rows: [] }));
      await rest();
      const found = [live.view("queue").state];
      clock.ms += 1_000;
      made[0].end();
      await rest(400);
      clock.ms += 3_600_000;
      made[1].say({ op: "hello", epoch: "b" });
      await rest();
      const { state, text, since_ms } = live.view("queue");
      found.push(state, text, clock.ms - since_ms);
      made[1].frame(snapshot("queue", { total: 3, rows: [] }));
      await rest();
      found.push(live.view("queue").state);
      live.setHidden(true);
      clock.ms += 3_600_000;
      live.setHidden(false);
      found.push(live.view("queue").state, live.view("queue").text);
      live.stop();
      return found;
    """)
    assert found == ["live", "stale", "waits for new figures", 3_601_000, "live", "stale", "waits for new figures"]


def test_one_connection_at_a_time_also_while_it_is_asked_who_looks(run: Callable[[str], Any]) -> None:
    found = run("""
      let answer;
      const live = make({ judge: () => new Promise((done) => (answer = () => done("again"))) });
      start(live);
      made[0].end();
      await rest();
      live.retry();
      made[1].say({ op: "hello", epoch: "a" });
      await rest();
      answer();
      await rest(400);
      const found = [made.length, live.state, live.socket === made[1], made[1].closes];
      live.stop();
      return found;
    """)
    assert found == [2, "live", True, 0]


def test_a_logout_while_it_is_asked_who_looks_is_for_good(run: Callable[[str], Any]) -> None:
    found = run("""
      let answer;
      const live = make({ judge: () => new Promise((done) => (answer = () => done("again"))) });
      start(live);
      made[0].end();
      await rest();
      live.stop();
      answer();
      await rest(400);
      return made.length;
    """)
    assert found == 1


def test_a_server_that_greets_and_ends_is_asked_ever_less_often(run: Callable[[str], Any]) -> None:
    found = run("""
      const live = make();
      start(live);
      const waits = [];
      const timer = window.setTimeout;
      for (let round = 0; round < 4; round += 1) {
        const socket = made.at(-1);
        socket.say({ op: "hello", epoch: "a" });
        await rest();
        window.setTimeout = (each, ms) => { waits.push(ms); return timer(each, 0); };
        socket.end();
        await Promise.resolve().then(() => undefined).then(() => undefined);
        window.setTimeout = timer;
        await rest();
      }
      live.stop();
      return waits;
    """)
    assert found == [225, 450, 900, 1_800]


def test_words_by_which_a_full_server_sends_a_tab_away_are_shown(watched: Callable[..., Watched]) -> None:
    with fake_page_server() as server:
        server.full = "this login has 10 pages open, which is the most; close one"
        tab = watched(server.url)
        tab.page.goto(server.url + "/reports")
        banner = tab.page.locator(".banners .notice")
        banner.filter(has_text="This login has 10 pages open, which is the most; close one").wait_for()
        assert "does not answer" not in banner.inner_text()

        server.full = ""
        tab.page.get_by_role("button", name="Try now").click()
        tab.page.locator(".bar .state-live").wait_for()
        assert banner.count() == 0


def test_another_process_is_not_live_before_its_figures(watched: Callable[..., Watched]) -> None:
    with fake_page_server() as server:
        tab = watched(server.url)
        tab.allowed += ["WebSocket connection", "Failed to load resource", "ERR_CONNECTION"]
        page = tab.open("/")
        server.epoch, server.silent = "e2", True
        server.restart()
        page.locator(".bar .state-live").wait_for()

        # At once, and not because it is silent for six seconds.
        page.locator(".panel.head.old .state-stale").wait_for(timeout=3_000)
        assert figure(page, "Waiting").inner_text() == "120"
        server.silent = False
        server.run(server.tabs[0].snapshot("head", server.cluster))
        page.locator(".panel.head.old").wait_for(state="detached")


def test_figures_of_ingest_are_greyed_while_it_is_away(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/")
    away = {"state": "away", "since_unix_s": 0, "error": ""}
    server.say(op="sources", ingest=away)
    page.locator(".panel.head.old").wait_for()
    page.locator(".panel.map.old").wait_for()


def test_a_silent_server_is_told_once_and_since_it_fell_silent(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/")
    mark = page.locator(".bar-end [role=status]")
    server.silent = True
    page.locator(".bar .state-stale").wait_for(timeout=12_000)
    # Six seconds of silence, however long the page has been open; and no screen reader is told each second.
    age_s = int("".join(each for each in mark.locator(".num").inner_text() if each.isdigit()))
    assert 5 <= age_s <= 9
    assert mark.locator(".num").get_attribute("aria-hidden") == "true"


def test_ages_are_by_the_servers_clock(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    tab = watched(server.url)
    # This machine's clock is ten minutes ahead.
    tab.page.add_init_script("{ const now = Date.now; Date.now = () => now() + 600_000; }")
    page = tab.open("/")
    until(lambda: server.tabs[0].acked.get("head", 0) > 1)  # the first figures have no time; the beat has
    server.say(op="sources", decompose={"state": "away", "since_unix_s": time.time() - 20, "error": ""})
    age = page.locator(".panel.map .state-away .num").inner_text()
    assert age.strip().removesuffix("\u202fs") in {"19", "20", "21", "22", "23"}


# --- questions that are not live ---


def test_an_answer_that_takes_longer_than_the_time_between_two_questions_is_shown(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    server.slow_s["policies"] = 3.6  # it is asked every 3 s
    tab = watched(server.url)
    tab.page.goto(server.url + "/policies")
    tab.page.get_by_role("heading", name="Who decides").wait_for(timeout=8_000)
    assert server.requests["policies"] == 1
