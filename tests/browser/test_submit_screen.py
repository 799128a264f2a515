"""The form of a job: what it says of its fields, and that a repeated or late answer does no harm."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import FakePageServer
from tests.browser.test_live import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_repeated_submission_is_the_same_job_and_a_changed_one_another(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    tab = watched(server.url)
    tab.allowed.append("status of 503")
    page = tab.open("/submit")
    send = page.get_by_role("button", name="Submit", exact=True)
    ids: list[str] = []

    def sent(route: object, request: object) -> None:
        ids.append(request.post_data_json["request_id"])  # type: ignore[attr-defined]
        route.continue_()  # type: ignore[attr-defined]

    page.route("**/api/actions/submit", sent)
    server.failing["submit"] = (503, "ingest does not answer")
    send.click()
    page.get_by_role("alert").get_by_text("ingest does not answer").wait_for()
    send.click()
    until(lambda: page.wait_for_timeout(20) or len(ids) == 2)
    page.get_by_label("Name").fill("another")
    server.failing.clear()
    send.click()
    page.wait_for_url("**/jobs/job-9001")

    assert len(set(ids)) == 2
    assert ids[0] == ids[1] != ids[2]
    assert server.actions[0][1]["request_id"] == ids[2]


def test_who_has_left_the_form_stays_where_he_is(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/submit")
    server.slow_s["submit"] = 0.6
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_role("link", name="Queue").click()
    page.get_by_role("heading", name="Queue").wait_for()
    until(lambda: server.actions != [])
    page.wait_for_timeout(300)
    assert page.url.endswith("/queue")


def test_a_field_that_a_service_blames_is_marked(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    tab = watched(server.url)
    tab.allowed.append("status of 400")
    page = tab.open("/submit")
    server.failing["submit"] = (400, "gpu_memory_mib: no GPU has so much")
    server.blamed["submit"] = "job.gpu_memory_mib"
    page.get_by_role("button", name="Submit", exact=True).click()
    page.locator('#field-gpu_memory[aria-invalid="true"]:focus').wait_for()
    assert page.locator("#hint-gpu_memory").inner_text() == "gpu_memory_mib: no GPU has so much"
    page.keyboard.type("1GiB")
    page.locator('#field-gpu_memory[aria-invalid="true"]').wait_for(state="detached")


def test_an_emptied_priority_is_the_usual_one(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/submit")
    page.get_by_label("Priority").fill("")
    assert "--priority" not in page.get_by_role("group", name="Command line").inner_text()
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/job-9001")
    assert server.actions[0][1]["job"]["priority"] == 0.5


def test_where_there_is_no_command_line_the_fields_are_named_and_nothing_can_be_copied(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/submit")
    page.get_by_role("textbox", name="GPUs", exact=True).fill("two")
    panel = page.get_by_role("region", name="The same from a terminal")
    panel.get_by_text("To be put right: GPUs.").wait_for()
    assert panel.get_by_role("button").count() == 0


def test_what_fits_is_read_out_after_a_change_and_not_all_the_time(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/submit")
    page.get_by_role("region", name="Fits now").get_by_text("8 GPUs fit now.").wait_for()
    told = page.get_by_role("region", name="Fits now").get_by_role("status")
    assert told.inner_text() == ""
    page.get_by_label("CPU cores").fill("2")
    told.filter(has_text="8 GPUs fit now.").wait_for(state="attached")
    # One unit for the whole column.
    assert page.get_by_role("columnheader", name="Memory, MiB").count() == 1


def test_a_job_that_waits_is_submitted_as_its_command_line_says(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    tab = watched(server.url)
    tab.allowed.append("status of 404")  # the job that it leads to is made up
    page = tab.open("/submit")
    page.get_by_label("Labels").fill("team=vision note='a b'")
    page.get_by_label("Begin").fill("now + 1h30m")
    page.get_by_label("After", exact=True).fill("17, array-20:any,job-3:afternotok")
    page.get_by_label("held until").check()
    page.get_by_label("Time limit").fill("1-12:00:00")
    page.get_by_label("it may be stopped").check()
    page.get_by_label("Restart").fill("1m")
    page.get_by_label("Lost work").fill("10m")
    page.get_by_role("group", name="Beside other jobs").get_by_label("Time to stop").fill("120")
    page.get_by_label("Command", exact=True).fill("python train.py")
    page.get_by_label("Folder").fill("/home/ada")
    page.get_by_role("group", name="The program").get_by_label("Time to stop").fill("01:00")
    page.get_by_label("Kept output").fill("1GB")
    line = page.get_by_role("group", name="Command line").inner_text()
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/job-9001")

    assert shlex.split(line) == [
        *("adlro", "submit", "--type", "machine_learning", "--label", "team=vision", "--label", "note=a b"),
        *("--time-limit", "129600", "--begin", "now + 1h30m", "--after", "job-17", "--after", "array-20:any"),
        *("--after", "job-3:fail", "--hold", "--preemptible", "--restart", "60", "--lost", "600"),
        *("--preempt-grace", "120", "--workdir", "/home/ada", "--stop-grace", "60", "--log-limit", "954MiB"),
        *("--", "python", "train.py"),
    ]
    [(_, content)] = server.actions
    assert "array" not in content
    job = content["job"]
    assert {name: job[name] for name in ("labels", "begin", "after", "held", "time_limit_s", "preemptible")} == {
        "labels": {"team": "vision", "note": "a b"},
        "begin": {"from_now_s": 5_400},
        "after": ["job-17", "array-20:any", "job-3:fail"],
        "held": True,
        "time_limit_s": 129_600,
        "preemptible": {"restart_s": 60, "lost_s": 600, "grace_s": 120},
    }
    assert (job["workdir"], job["stop_grace_s"], job["log_limit_mib"]) == ("/home/ada", 60, 954)


def test_an_array_says_how_many_jobs_it_has_and_leads_to_them(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/submit")
    page.get_by_label("Array").fill("0-99:5,3%10")
    page.get_by_text("21 jobs, 10 at once").wait_for()
    assert "--array 0-99:5,3%10" in page.get_by_role("group", name="Command line").inner_text()
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/queue?array=array-9001")
    page.locator(".badge", has_text="array-9001").wait_for()
    assert server.actions[0][1]["array"] == "0-99:5,3%10"


@pytest.mark.parametrize(
    ("field", "label", "texts"),
    [
        ("begin", "Begin", ["soon", "25:00", "2026-02-31", "now+", "2026-11-28T25:00", "1m1h"]),
        ("after", "After", ["x", "job-0", "job-1:never", "job-1,,job-2", "array-2:"]),
        ("array", "Array", ["a", "3-1", "0-3%", "0-3%0", "0-9:0", "1,,2", "0-10000", "-1"]),
        ("labels", "Labels", ["vision", "=x"]),
        ("time_limit", "Time limit", ["0", "1m1h", "1.5h1m", "1-25", "00:61", "x"]),
        ("log_limit", "Kept output", ["much", "1GBi"]),
        ("workdir", "Folder", []),
    ],
)
def test_what_the_command_would_refuse_is_marked_at_its_field(
    field: str, label: str, texts: list[str], server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/submit")
    page.get_by_label("Command", exact=True).fill("true")
    box = page.get_by_label(label, exact=True)
    for text in texts:
        box.fill(text)
        page.get_by_role("button", name="Submit", exact=True).click()
        page.locator(f'#field-{field}[aria-invalid="true"]:focus').wait_for()
        assert page.locator(f"#hint-{field}.wrong").inner_text()
        assert page.get_by_role("group", name="Command line").count() == 0
    if not texts:  # of a program that is not there
        page.get_by_label("Command", exact=True).fill("")
        box.fill("/tmp")
        page.get_by_role("button", name="Submit", exact=True).click()
        page.locator('#field-program[aria-invalid="true"]:focus').wait_for()
    assert server.actions == []


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("16:00", {"unix_s": 1_795_881_600}),
        ("9:30", {"unix_s": 1_795_944_600}),  # over today: tomorrow's
        ("2026-12-01", {"unix_s": 1_796_083_200}),
        ("2026-12-01 08:00:30", {"unix_s": 1_796_112_030}),
        ("2026-12-01T08:00Z", {"unix_s": 1_796_112_000}),
        ("3600s", {"time_s": 3_600}),
        ("1h", {"time_s": 3_600}),
    ],
)
def test_a_begin_is_read_as_the_command_reads_it(
    text: str, begin: dict[str, float], server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    tab = watched(server.url, timezone_id="UTC")
    tab.allowed.append("status of 404")  # the job that it leads to is made up
    tab.page.clock.set_fixed_time("2026-11-28T10:00:00Z")
    page = tab.open("/submit")
    page.get_by_label("Begin").fill(text)
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/job-9001")
    job = server.actions[0][1]["job"]
    found = job["begin"] if "begin" in job else {"time_s": job["begin_time_s"]}
    assert found == begin


def test_a_wall_time_that_the_cluster_has_not_is_told_at_its_field(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    tab = watched(server.url)
    tab.allowed.append("status of 400")
    page = tab.open("/submit")
    page.get_by_label("Begin").fill("16:00")
    for blamed, field in (("begin", "begin"), ("job.after[0].job_id", "after"), ("indexes", "array")):
        server.failing["submit"] = (400, f"{blamed}: not so")
        server.blamed["submit"] = blamed
        page.get_by_role("button", name="Submit", exact=True).click()
        page.locator(f'#field-{field}[aria-invalid="true"]:focus').wait_for()
        assert page.locator(f"#hint-{field}").inner_text() == f"{blamed}: not so"
