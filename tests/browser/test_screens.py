"""What one does on the screens: filter ten thousand jobs, ask why by keyboard alone, cancel, submit, read curves."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import TOKEN, FakePageServer, fake_page_server
from tests.browser.made_up_cluster import Cluster
from tests.browser.pixels import leftmost

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def focused(page: Any) -> str:
    """The text, label or name of what has the focus."""
    return str(page.evaluate("(document.activeElement.innerText || document.activeElement.name || '').trim()"))


def tab_to(page: Any, text: str, limit: int = 60) -> None:
    """Presses Tab until that has the focus, which must be visible."""
    for _ in range(limit):
        page.keyboard.press("Tab")
        if focused(page).startswith(text):
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            return
    pytest.fail(f"{text!r} can't be reached by Tab")


def test_keyboard_only_from_login_to_why_a_job_waits(watched: Callable[..., Watched]) -> None:
    with fake_page_server(login=True) as server:
        tab = watched(server.url)
        tab.allowed.append("status of 401")
        page = tab.open("/")
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.name") == "token":
                break
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.get_by_role("alert").filter(has_text="this token is not known").wait_for()
        page.keyboard.press("Control+A")
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="What needs you").wait_for()
        tab_to(page, "Queue")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Queue").wait_for()
        page.keyboard.press("/")
        page.keyboard.type("job-26")
        page.get_by_text("1 job of 140").wait_for()
        tab_to(page, "job-26")
        page.keyboard.press("Enter")

        page.get_by_role("region", name="Why it waits").get_by_text("no such GPU is free").wait_for()
        assert page.get_by_text("in 3\u202fm 00\u202fs to 9\u202fm 00\u202fs").count() == 1
        # No token is kept where a script could read it.
        assert TOKEN not in page.evaluate(
            "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
        )


def test_ten_thousand_jobs_are_a_window(watched: Callable[..., Watched]) -> None:
    with fake_page_server(Cluster(waiting=10_000)) as server:
        page = watched(server.url).open("/queue")
        page.get_by_text("10,020 jobs").wait_for()
        assert page.locator("tbody tr").count() < 120

        page.get_by_role("row", name="job-21").get_by_role("link").focus()
        page.keyboard.press("End")
        page.get_by_role("row", name="job-20 ").get_by_role("link").wait_for()
        page.locator('tr[data-index="10019"] a:focus').wait_for()
        assert page.locator("tbody tr").count() < 120
        page.keyboard.press("ArrowUp")
        page.locator('tr[data-index="10018"] a:focus').wait_for()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Cancel job").wait_for()


def test_filter_and_order_stand_in_the_address(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    tab = watched(server.url)
    page = tab.open("/queue")
    page.get_by_role("button", name="Waited").click()
    page.locator('th[aria-sort="descending"]').filter(has_text="Waited").wait_for()
    page.get_by_label("State").select_option("pending")
    page.get_by_label("Name or id").fill("resnet50")
    page.wait_for_url("**/queue?q=resnet50&sort=-wait_s&state=pending")
    other = page.locator("tbody tr:not([aria-hidden])").filter(has_not_text="resnet50").first
    other.wait_for(state="detached")
    before = page.locator("tbody").inner_text()

    tab.open("/queue?q=resnet50&sort=-wait_s&state=pending")
    assert page.locator("tbody").inner_text() == before
    assert "resnet50" in before
    assert page.get_by_label("Name or id").input_value() == "resnet50"


def test_cancel_asks_first_and_tells_a_refusal(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    tab = watched(server.url)
    tab.allowed.append("status of 403")
    page = tab.open("/jobs/job-26")
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    assert server.actions == []

    server.failing["cancel"] = (403, "job-26 is not yours")
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("alert").filter(has_text="job-26 is not yours").wait_for()
    server.failing.clear()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").wait_for(state="detached")
    assert server.actions == [("cancel", {"job_id": "job-26"})]


def test_a_policy_is_set_only_after_its_name_was_typed(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/policies")
    page.get_by_role("button", name="Let it decide fcfs").click()
    act = page.get_by_role("dialog").get_by_role("button", name="Set policy")
    assert act.is_disabled()
    page.get_by_role("dialog").get_by_role("textbox").fill("fcfs")
    act.click()
    page.get_by_role("dialog").wait_for(state="detached")
    assert server.actions == [("policy", {"policy": "fcfs"})]


def test_a_policy_says_what_it_is_for_and_where_it_comes_from(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/policies")

    def told(name: str) -> list[str]:
        item = page.locator(".policies li", has=page.get_by_role("heading", name=name, exact=True))
        return [" ".join(each.split()) for each in item.get_by_role("paragraph").all_inner_texts()]

    assert told("dqn") == [
        "For most clusters: the least mean completion time of jobs of one GPU.",
        "The learned policy: the network's values of pairs.",
        "shipped with ADLRO, checkpoint 770b",
    ]
    assert told("shortest")[2] == "own file: /home/ada/policies/mine.py:Shortest, version 5d41402abc4b"
    # Without advice it says what it does; names of packages are somebody else's text.
    assert told("fair")[0] == "Users in turn."
    assert told("fair")[1].startswith("entry point of a package: fair (fairness 1.2 <img")
    assert "⟨U+202E⟩" in told("fair")[1]


def test_the_form_submits_what_its_command_line_says(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/submit")
    page.get_by_label("Name").fill('it\'s "mine"')
    page.get_by_role("textbox", name="GPUs", exact=True).fill("two")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_text("a whole number from 1 to 1024").wait_for()
    assert server.actions == []
    page.get_by_role("textbox", name="GPUs", exact=True).fill("2")
    page.get_by_label("GPU memory").fill("15,000 MiB")
    page.get_by_label("CPU cores").fill("8")
    page.get_by_label("Time limit").fill("1h30m")
    page.get_by_label("t4", exact=True).check()
    page.get_by_label("it may be stopped").check()
    page.get_by_label("Not on nodes").fill("v100-1, v100-2")
    page.get_by_label("Only on nodes").fill("t4-0")
    page.get_by_label("no other job runs on its nodes").check()
    page.get_by_label("Command", exact=True).fill("python train.py --note 'a b'")

    line = page.get_by_role("group", name="Command line").inner_text()
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/job-9001")

    assert shlex.split(line) == [
        *("adlro", "submit", "--type", "machine_learning", "--name", 'it\'s "mine"', "--gpus", "2"),
        *("--gpu-model", "t4", "--exclusive", "--exclude", "v100-1,v100-2", "--nodelist", "t4-0"),
        *("--cores", "8", "--gpu-memory", "15000MiB", "--time-limit", "5400", "--preemptible"),
        *("--", "python", "train.py", "--note", "a b"),
    ]
    [(name, content)] = server.actions
    assert name == "submit"
    assert content["job"] | {"expected_runtime": None} == {
        "name": "it's \"mine\"", "job_type": "machine_learning", "application": "", "priority": 0.5, "gpu_count": 2,
        "gpu_models": ["t4"], "max_node_count": 0, "cpu_cores": 8, "memory_mib": 0, "gpu_memory_mib": 15_000,
        "time_limit_s": 5_400, "expected_runtime": None,
        "preemptible": {"restart_s": 0, "lost_s": 0, "grace_s": None}, "shareable": False,
        "argv": ["python", "train.py", "--note", "a b"], "image": "", "workdir": "", "stop_grace_s": None,
        "log_limit_mib": 0, "labels": {}, "after": [], "held": False, "exclusive": True,
        "excluded_node_ids": ["v100-1", "v100-2"], "node_ids": ["t4-0"],
    }  # fmt: skip


def test_the_map_is_one_stop_for_tab_and_arrows_go_on(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/")
    assert page.locator('.heatmap button[tabindex="0"]').count() == 1
    page.locator('.heatmap button[tabindex="0"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.locator(".inspector strong").get_by_text("v100-1/0").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/gpus/v100-1%2F0")
    page.get_by_role("heading", name="v100-1/0").wait_for()


# --- the curves of the first screen ---


def test_a_fresh_tab_has_the_curves_of_the_last_hour_and_goes_on_from_there(watched: Callable[..., Watched]) -> None:
    cluster = Cluster()
    with fake_page_server(cluster) as server:
        tab = watched(server.url)
        tab.allowed += ["Multiple readback operations", "WebSocket connection", "ERR_CONNECTION", "Failed to load"]
        page = tab.open("/")
        region = page.get_by_role("region", name="The last hour")
        region.locator("canvas").nth(1).wait_for()
        # Without a single live point: from the left edge of the plot on.
        assert leftmost(page, "Jobs that wait", "--tone-1") < 0.15
        assert leftmost(page, "GPUs allocated", "--tone-3") < 0.15
        early = cluster.head()["queue_by_reason"]["begin_time"]
        region.get_by_role("img", name=f"Last: waiting {120 - early} jobs").wait_for()

        # A live point; jobs whose begin time has not come do not wait.
        server.run(server.tabs[0].delta("head", {"time_s": cluster.now_s + 2, "queue_length": 50, "allocated_gpus": 7}))
        region.get_by_role("img", name=f"Last: waiting {50 - early} jobs").wait_for()
        region.get_by_role("img", name="Last: allocated 7 GPUs").wait_for()
        assert leftmost(page, "Jobs that wait", "--tone-1") < 0.15
        assert server.requests["load"] == 1

        # What happened while the page's server was away is asked for.
        cluster.now_s += 10
        with page.expect_response("**/api/load?*"):
            server.restart()
        region.get_by_role("img", name=f"Last: waiting {120 - early} jobs").wait_for()
        assert server.requests["load"] == 2

        page.get_by_role("button", name="10 m", exact=True).click()
        page.get_by_role("region", name="The last 10 minutes").locator("canvas").nth(1).wait_for()
        page.wait_for_url("**/?last=10m")


def test_curves_that_are_not_exact_say_so(watched: Callable[..., Watched]) -> None:
    class Busy(Cluster):
        def load(self, span_s: float) -> dict[str, Any]:
            found = super().load(span_s)
            return found | {"exact": False, "from_s": found["from_s"] + 600}

    with fake_page_server(Busy()) as server:
        page = watched(server.url).open("/")
        page.get_by_text("Too many jobs have ended for all of this time").wait_for()
        page.get_by_text("Too many starts for single ones").wait_for()


def test_a_report_can_not_touch_the_session(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/reports")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Open the whole report").click()
    opened.value.wait_for_load_state()
    assert opened.value.evaluate("window.origin") == "null"


def test_colours_follow_the_system_and_the_switch(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    tab = watched(server.url, color_scheme="dark")
    page = tab.open("/")
    ground = "getComputedStyle(document.body.parentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_label("Colours").select_option("light")
    light = page.evaluate(ground)
    assert light != dark
    tab.open("/queue")
    assert page.evaluate(ground) == light  # kept
    page.get_by_label("Colours").select_option("system")
    assert page.evaluate(ground) == dark


def test_a_path_that_is_no_screen_says_so(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/nothing/here")
    assert page.get_by_role("heading", name="No such page").count() == 1


def test_a_screen_without_a_source_is_not_in_the_navigation(watched: Callable[..., Watched]) -> None:
    class Few(Cluster):
        def me(self, *, users_known: bool) -> dict[str, Any]:
            return super().me(users_known=users_known) | {"screens": ["cluster", "queue"], "actions": []}

    with fake_page_server(Few()) as server:
        tab = watched(server.url)
        page = tab.open("/jobs/job-2")
        assert page.get_by_role("navigation").get_by_role("link").all_inner_texts() == ["Cluster", "Queue"]
        assert page.get_by_role("button", name="Cancel job").count() == 0
        assert page.get_by_role("link", name="Decision").count() == 0
