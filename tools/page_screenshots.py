"""Photographs every screen of the page, light and dark, for the documentation: `python tools/page_screenshots.py`.

A suite of its own replays a fixed list of jobs in virtual time and is paused at a fixed moment, with the learned policy
acting and hold_greedy_fixed as shadow; two short trainings and a small evaluation give the other screens something to
show. Writes docs/page/NAME-light.png and NAME-dark.png. Needs chromium on PATH and the packages of the `dev` extra.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from adlro.client import Client  # noqa: E402
from adlro.records.jobs import JobState  # noqa: E402
from tests.e2e.running_suite import ADLRO, RunningSuite, adlro, environment, start_suite  # noqa: E402

OUT = ROOT / "docs" / "page"
LARGEST_BYTES = 60_000
MOMENT_S = 600.0  # of the cluster's clock, when the replay is paused
# The replay runs at most so fast, so that it can be paused near the moment.
CLUSTER_SECONDS_A_SECOND = 20.0
WIDTH, HEIGHT = 1280, 860


def command(*words: str) -> None:
    """Runs an `adlro` command that must succeed."""
    ended = adlro(*words, timeout_s=900)
    if ended.returncode:
        raise SystemExit(f"adlro {' '.join(words)} failed:\n{ended.stdout}{ended.stderr}")


def made_runs(folder: Path) -> None:
    """Two short trainings of one recipe; they show the screen, and learn little."""
    for seed in (1, 2):
        words = ["train", str(folder / f"short-{seed}"), "--recipe", "dqn", "--seed", str(seed), "--episodes", "200"]
        for setting in ("lists=8", "jobs=24", "replay=1500", "validate_every=2", "batch=64", "validation_lists=2"):
            words += ["--set", setting]
        command(*words)


def made_reports(folder: Path) -> None:
    """A small evaluation: three policies on five lists."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["evaluate", "--scenario", "paper", "--load", "0.9", "--jobs", "120", "--seeds", "5", "--processes", "1"]
    words += ["--policies", "fcfs,sjf,hold_greedy_fixed"]
    command(*words, "--json", str(folder / "small.json"), "--html", str(folder / "small.html"))


@contextmanager
def replay(folder: Path, runs: Path, reports: Path) -> Iterator[RunningSuite]:
    """The suite in the middle of its replay, paused."""
    jobs = folder / "jobs.csv"
    command("workload", "--load", "1.1", "--jobs", "1000", "--seed", "17", "--write", str(jobs))
    folders = {"ADLRO_WEB_RUNS_DIR": str(runs), "ADLRO_WEB_REPORTS_DIR": str(reports)}
    suite = start_suite(folder / "data", "--port", "0", "--clock", "virtual", "--policy", "dqn", **folders)
    replaying: subprocess.Popen[bytes] | None = None
    try:
        with Client(suite.server) as client:
            client.set_shadow_policy("hold_greedy_fixed")
            words = ["replay", str(jobs), "--time", "virtual", "--scale", str(CLUSTER_SECONDS_A_SECOND)]
            replaying = subprocess.Popen(
                [*ADLRO, *words, "--policy", "dqn", "--server", suite.server],
                cwd=ROOT,
                env=environment(suite.mark),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            end = time.monotonic() + 600
            while client.status().cluster_time_s < MOMENT_S:
                if replaying.poll() is not None or time.monotonic() > end:
                    raise SystemExit("the replay did not reach the moment of the photographs")
                time.sleep(0.1)
            # The replay would set the clock going again.
            replaying.send_signal(signal.SIGSTOP)
            client.set_clock(paused=True)
        yield suite
    finally:
        if replaying is not None and replaying.poll() is None:
            replaying.send_signal(signal.SIGCONT)
            with Client(suite.server) as client:
                client.set_clock(paused=False)
            replaying.send_signal(signal.SIGINT)
            replaying.wait(120)
        suite.end()


def screens(page: Any, url: str) -> dict[str, str]:
    """Names and paths of what is photographed: the screens that the navigation has, and the map's first GPU."""
    page.goto(url)
    first = page.locator(".heatmap button").first
    first.wait_for()
    me = json.loads(page.request.get(url + "/api/me").text())
    gpu = str(first.get_attribute("aria-label")).split(":")[0]
    paths = {name: "/" if name == "cluster" else f"/{name}" for name in me["screens"]}
    return paths | {"gpu": f"/gpus/{quote(gpu, safe='')}"}


def photograph(url: str, server: str, out: Path) -> list[Path]:
    """All screens in both colours, and Cluster and a waiting job as a telephone shows them."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("no chromium on PATH")
    with Client(server) as client:
        waiting = min(
            (job.submit_s, job.job_id) for job in client.list() if job.state is JobState.PENDING and job.submit_s
        )[1]
        ended = next(job.job_id for job in client.list() if job.state.final)
    written = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            page = context.new_page()
            shown = screens(page, url) | {"job_waiting": f"/jobs/{waiting}", "job_ended": f"/jobs/{ended}"}
            for name, path in shown.items():
                written.append(one(page, url + path, out / f"{name}-{scheme}.png"))
                link = page.locator('th a[href^="/decisions/d"]')
                if name == "decisions" and link.count():
                    written.append(
                        one(page, url + str(link.first.get_attribute("href")), out / f"decision-{scheme}.png")
                    )
            phone = browser.new_context(
                viewport={"width": 360, "height": 740}, color_scheme=scheme, device_scale_factor=2
            ).new_page()
            written += [
                one(phone, url + shown[name], out / f"{name}_360-{scheme}.png") for name in ("cluster", "job_waiting")
            ]
        browser.close()
    return written


def one(page: Any, address: str, path: Path) -> Path:
    """A photograph of a screen that has its figures; with 128 colours where it would be large."""
    page.goto(address)
    page.locator("main h1").first.wait_for(state="attached")
    page.locator(".skeleton").first.wait_for(state="detached")
    page.wait_for_timeout(1_500)  # curves come with their library, bars with the next frame
    page.screenshot(path=path)
    if path.stat().st_size > LARGEST_BYTES:
        from PIL import Image

        with Image.open(path) as image:
            few = image.convert("RGB").quantize(128)
        few.save(path, optimize=True)
    return path


def main() -> int:
    """Makes the photographs; returns the exit status."""
    parser = argparse.ArgumentParser(description="Photographs every screen of the page, light and dark.")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder of the files (default: {OUT.relative_to(ROOT)})")
    parser.add_argument("--runs", type=Path, help="trainings to show (default: two short ones are made, a few minutes)")
    parser.add_argument("--reports", type=Path, help="evaluations to show (default: a small one is made)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs, reports = options.runs or folder / "runs", options.reports or folder / "reports"
        if options.runs is None:
            made_runs(runs)
        if options.reports is None:
            made_reports(reports)
        with replay(folder, runs.resolve(), reports.resolve()) as suite:
            url = next(word for word in suite.text.split() if word.startswith("http://")).rstrip("/")
            for path in photograph(url, suite.server, options.out):
                print(f"{path} {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
