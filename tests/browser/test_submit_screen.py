"""The form of a job: what it says of its fields, and that a repeated or late answer does no harm."""

from __future__ import annotations

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
