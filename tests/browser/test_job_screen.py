"""A job's page: its output as it comes and ends, what became of its attempts, and how often it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import fake_page_server
from tests.browser.made_up_cluster import HOSTILE, Cluster
from tests.browser.test_live import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]


class WithOutput(Cluster):
    """job-2 has the output, and the attempts, that a test gives it."""

    output = "".join(f"epoch {number}\n" for number in range(400))
    attempts: list[dict[str, Any]] | None = None

    def answer(self, path: str, query: dict[str, str]) -> dict[str, Any] | None:
        found = super().answer(path, query)
        if path == "jobs/job-2/logs":
            return {
                "stream": query["stream"],
                "offset": 0,
                "size_bytes": len(self.output),
                "text": self.output,
                "complete": False,
            }
        return found

    def job_record(self, job_id: str) -> dict[str, Any]:
        record = super().job_record(job_id) | {"has_logs": True}
        return record if self.attempts is None or job_id != "job-2" else record | {"attempts": self.attempts}


SCROLL = (
    "[...document.querySelectorAll('pre.log')].map((log) => [log.scrollTop, log.scrollHeight - log.clientHeight])[0]"
)


def test_the_output_opens_at_its_end_and_follows_it(watched: Callable[..., Watched]) -> None:
    cluster = WithOutput()
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/jobs/job-2")
        page.locator("pre.log").get_by_text("epoch 399").wait_for()
        at, end = page.evaluate(SCROLL)
        assert end > 1_000
        assert abs(at - end) < 2

        cluster.output += "".join(f"later {number}\n" for number in range(100))
        page.locator("pre.log").get_by_text("later 99").wait_for()
        at, end = page.evaluate(SCROLL)
        assert abs(at - end) < 2

        # Who reads further up is left there.
        page.evaluate("document.querySelector('pre.log').scrollTop = 500")
        page.wait_for_timeout(100)
        cluster.output += "last of all\n"
        page.locator("pre.log").get_by_text("last of all").wait_for()
        assert page.evaluate(SCROLL)[0] == 500
        # A text that is renewed as a whole is not read out each time.
        assert page.get_by_role("log").get_attribute("aria-live") == "off"


def test_the_last_lines_of_a_job_that_ends_are_shown(watched: Callable[..., Watched]) -> None:
    cluster = WithOutput()
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/jobs/job-2")
        page.locator("pre.log").get_by_text("epoch 399").wait_for()
        job = cluster.job("job-2")
        assert job is not None
        job["state"] = "failed"
        server.push()
        page.locator(".title").get_by_text("failed").wait_for()
        # Stored a moment after the job's end.
        cluster.output += "Traceback: out of memory\n"
        page.locator("pre.log").get_by_text("Traceback").wait_for(timeout=5_000)


def test_what_became_of_each_attempt_is_told(watched: Callable[..., Watched]) -> None:
    cluster = WithOutput()
    common = {
        "gpu_ids": ["v100-0/1"],
        "gpu_model": "v100_sxm2",
        "preempted": False,
        "excused": False,
        "exit_text": None,
    }
    outcomes = [
        ("lost: node v100-0 went away", "lost"),
        ("failed: exit code 1", "failed"),
        ("given up: no answer to its launch", "lost"),
        ("preempted: for job-12", "preempted"),
        ("stopped", "cancelled"),
        (f"something new {HOSTILE}", "failed"),
        ("succeeded", "succeeded"),
    ]
    cluster.attempts = [
        common
        | {
            "attempt": number + 1,
            "start_s": cluster.now_s - 900 + 100 * number,
            "end_s": cluster.now_s - 850 + 100 * number,
            "outcome": outcome,
            "preempted": outcome.startswith("preempted"),
            "exit_text": "exit code 1" if "exit code" in outcome else None,
        }
        for number, (outcome, _) in enumerate(outcomes)
    ]
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/jobs/job-2")
        table = page.get_by_role("region", name="Attempts, table")
        kinds = table.locator("tbody .job-state").evaluate_all(
            "(all) => all.map((each) => each.className.split('-').at(-1))"
        )
        assert kinds == [kind for _, kind in outcomes]
        said = [" ".join(each.split()) for each in table.locator("tbody td:last-child").all_inner_texts()]
        assert said[:5] == [
            "! lost node v100-0 went away",
            "✗ failed exit code 1",
            "! lost given up: no answer to its launch",
            "⏏ preempted for job-12",
            "⊘ cancelled",
        ]
        assert "⟨U+202E⟩" in said[5]
        assert page.locator(".timeline .run").evaluate_all("(all) => all.map((each) => each.className)") == [
            f"run outcome-{kind}" for _, kind in outcomes
        ]


def test_a_job_is_asked_about_once_as_its_page_opens(watched: Callable[..., Watched]) -> None:
    with fake_page_server() as server:
        page = watched(server.url).open("/jobs/job-26")
        page.get_by_text("no such GPU is free").wait_for()
        page.wait_for_timeout(300)
        assert server.requests["jobs/job-26"] == 1
        # And at once when its state changes.
        job = server.cluster.job("job-26")
        assert job is not None
        job["reason"] = "policy"
        server.push()
        until(lambda: server.requests["jobs/job-26"] == 2, timeout_s=2)
