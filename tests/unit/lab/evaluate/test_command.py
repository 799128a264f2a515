"""The command: exit codes and messages for bad input, the page, an interrupted run that goes on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from adlro.decide.policies.fcfs import Fcfs
from adlro.lab.evaluate import Request, command, evaluate
from adlro.lab.evaluate.document import build_document
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from adlro.workload.traces import write_paper_csv

QUICK = ["--policies", "fcfs,sjf", "--load", "0.9", "--jobs", "16", "--seeds", "3", "--processes", "1"]
MODULE = [sys.executable, "-m", "adlro.lab.evaluate"]
ADLRO = [sys.executable, "-m", "adlro.cli", "evaluate"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["evaluate", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        command.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policies", "sfj"], "--policies: unknown policy 'sfj'; did you mean sjf"),
        (["--scenario", "papre"], "--scenario: unknown scenario 'papre'; did you mean paper"),
        (["--load", "0"], "--load: must be a finite number above 0, not '0'"),
        (["--load=-1"], "--load: must be a finite number above 0, not '-1'"),
        (["--load", "nan"], "--load: must be a finite number above 0, not 'nan'"),
        (["--load", "0.6,many"], "--load: must be a finite number above 0, not 'many'"),
        (["--jobs", "0"], "--jobs: must be at least 1, not 0"),
        (["--seeds", "0"], "--seeds: must be at least 1, not 0"),
        (["--seed=-1"], "--seed: must be a whole number from 0, not -1"),
        (["--trace", "nowhere.swf"], "--trace: nowhere.swf: no such file"),
        (["--trace", "README"], "--trace: README: no such file"),
        (["--trace", __file__], "--trace-format: "),
        (
            ["--trace", __file__, "--trace-format", "sfw"],
            "--trace-format: unknown trace format 'sfw'; did you mean swf",
        ),
        (["--trace", __file__, "--trace-format", "swf"], "line 1: "),
        (["--cluster", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["--runtime", "noise:x"], "--runtime: the sigma of noise"),
        (["--runtime", "lerned"], "not 'lerned'; or learned, which uses a decompose"),
        (["--decompose", "here:1", "--redis-url", "redis://here"], "--decompose: --decompose goes with --runtime lear"),
        (["--runtime", "learned", "--redis-url", "redis://here"], "--redis-url: the store of a running decompose; na"),
        (["--runtime", "learned", "--decompose", "here:1"], "--decompose: it learns from its store; name"),
        (["--runtime", "learned", "--decompose", "here", "--redis-url", "redis://h"], "--decompose: must be host:port"),
        (["--runtime", "learned", "--decompose", "here:1", "--redis-url", "here"], "--redis-url: must be a URL such"),
        (["--weights", "1,1"], "--weights: must be three numbers"),
        (["--weights", "0,0,0"], "--weights: must be numbers from 0 and not all 0, not 0,0,0"),
        (["--load", "1e-15"], "--load: must be from 1e-06 to 1e+06 (1: the capacity of the cluster), not '1e-15'"),
        (["--trace", str(Path(__file__).parent)], f"--trace: {Path(__file__).parent}: is a directory"),
        (
            ["--json", "/tmp/out", "--html", "/tmp/../tmp/out"],
            "--html: /tmp/../tmp/out: the same file as --json /tmp/out",
        ),
        (["--json", "nowhere/out.json"], "--json: nowhere/out.json: the directory nowhere does not exist"),
        (["--html", "/"], "--html: /: is a directory"),
        (["--processes", "0"], "--processes: must be at least 1, not 0"),
        (["--wait-ratio=-1"], "--wait-ratio: must be a number from 0 to 1e+09 (0: no limit), not -1"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code = run(monkeypatch, *arguments)
    out, error = capfd.readouterr()
    assert said in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert (code, out) == (2, "")


def test_files_and_tables(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    assert run(monkeypatch, *QUICK, "--json", str(out), "--html", str(page)) == 0
    document = json.loads(out.read_text())
    table = capfd.readouterr().out
    best = min(document["rows"], key=lambda row: float(row["mean_jct_s"]))
    assert f"{best['mean_jct_s']:.1f}" in table
    assert "paper at load 0.9" in table
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "out.json"]
    html = page.read_text()
    assert f"{best['mean_jct_s']:.1f}" in html
    (results,) = re.findall(r"<h3>Results</h3>.*?</table>", html, re.DOTALL)
    (compared,) = re.findall(r"<h3>Paired comparisons</h3>.*?</table>", html, re.DOTALL)
    for part in (results, compared):
        columns, cells = re.findall(r"<th>(.*?)</th>", part.partition("<tbody>")[0]), part.partition("<tbody>")[2]
        assert len(columns) == len(re.findall(r"<t[hd]\b", cells.partition("</tr>")[0])), "a cell for each heading"
    assert {"Overdue", "Fallback", "Longest wait", "Jobs/h", "p95 JCT"} <= set(re.findall(r"<th>(.*?)</th>", results))
    assert {"p95 JCT ratio", "Longest wait ratio", "Throughput ratio"} <= set(re.findall(r"<th>(.*?)</th>", compared))
    # Self-contained: nothing is loaded from elsewhere (plotly's script names addresses, so tags are what counts).
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", html)


def test_a_document_to_stdout_is_all_that_stands_there(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run(monkeypatch, *QUICK, "--json", "/dev/stdout") == 0
    out, error = capfd.readouterr()
    assert [row["policy"] for row in json.loads(out)["rows"]] == ["fcfs", "sjf"]
    assert "paper at load 0.9" in error
    assert not list(tmp_path.rglob("*.npz"))


def test_a_page_of_two_scenarios_tells_of_each_what_it_is() -> None:
    from adlro.lab.evaluate.page import build_page

    request = Request(policies=("sjf",), scenarios=("paper", "gavel"), loads=(0.6,), jobs=8, lists=1)
    evaluation = evaluate(request, processes=1, time_decisions=False)
    document = build_document(evaluation)
    # One list tells nothing about others: no interval, and nothing is coloured as better or worse.
    for entry in (*document["rows"], *document["paired"]):
        assert [value for key, value in entry.items() if key.endswith("_ci95")].count([None, None]) >= 5
        assert all(value == [None, None] for key, value in entry.items() if key.endswith("_ci95"))
    html = build_page(evaluation, document)
    assert not re.search(r'class="(good|bad)"', html)
    header, *sections = html.partition("<script>")[0].split("<section>")
    for section, case in zip(sections, evaluation.cases, strict=False):
        gpus = sum(1 for _ in case.cluster.gpus())
        assert f"8 jobs a list, 1 list, {gpus} GPUs ({', '.join(case.cluster.gpu_models)})" in section
    assert "GPUs" not in header
    definitions = document["meta"]["definitions"]
    assert any("J jobs with submission s" in item for item in definitions)
    assert any("mean over the lists" in item and "makespan too" in item for item in definitions)
    assert any(item.startswith("HyperScore = 100 [1 + sigmoid(5 ln V") for item in definitions)
    assert "J jobs with submission s, start t of the last attempt, end e" in html


def test_what_the_page_draws_is_plotlys() -> None:
    from adlro.lab.evaluate.page import build_page

    name = "<b>mine</b>\u202e\x9b"
    evaluation = evaluate(
        Request(policies=("sjf",), own={name: Fcfs()}, loads=(0.6, 0.9), jobs=16, lists=2), processes=1
    )
    html = build_page(evaluation, build_document(evaluation))
    assert name not in html
    assert "&lt;b&gt;mine&lt;/b&gt;\\u202e\\x9b" in html
    found = re.search(r"const DATA = (\{.*\});</script>", html)
    assert found is not None
    data = json.loads(found[1])
    assert "<b>mine</b>\\u202e\\x9b" in data["policies"]
    (scenario,) = data["scenarios"]
    assert [each["load"] for each in scenario["distributions"]] == [0.6, 0.9]
    assert scenario["episodes"]["load"] == 0.9
    for episode in scenario["episodes"]["episodes"]:
        assert len(episode["start"]) == 16
        assert set(episode["type"]) <= {1, 2, 3}
    for curve in scenario["distributions"][0]["curves"]:
        assert curve["share"] == sorted(curve["share"])
        assert curve["share"][-1] == 1.0
        assert len(curve["jct"]) == len(curve["share"])


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    out, straight = tmp_path / "out.json", tmp_path / "straight.json"
    arguments = ["--policies", "fcfs,sjf,min_min", "--load", "0.9", "--jobs", "40", "--seeds", "300"]
    arguments += ["--processes", "2"]
    process = subprocess.Popen([*ADLRO, *arguments, "--json", str(out)], stderr=subprocess.PIPE, text=True)
    parts = tmp_path / "out.json.partial"
    deadline_s = time.monotonic() + 180
    while len(list(parts.glob("*.npz")) if parts.exists() else []) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"finished parts are kept in {parts}" in said
    assert "Traceback" not in said
    kept = {path.name: path.stat().st_mtime_ns for path in parts.iterdir()}
    assert len(kept) < 18
    assert not out.exists()

    again = subprocess.run(
        [*MODULE, *arguments, "--json", str(out)], capture_output=True, text=True, timeout=110, check=True
    )
    first = next(line for line in again.stderr.splitlines() if line.startswith("simulating: "))
    assert first == f"simulating: {50 * len(kept)} of 900"
    assert not parts.exists()
    subprocess.run([*MODULE, *arguments, "--json", str(straight)], capture_output=True, timeout=110, check=True)
    rows = [json.loads(path.read_text())["rows"] for path in (out, straight)]
    for row in rows[0] + rows[1]:
        for key in ("decision_us_p50", "decision_us_p99"):
            del row[key]
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_the_command_passes_arguments_and_exit_codes() -> None:
    bad = subprocess.run([*ADLRO, "--load", "0"], capture_output=True, text=True, timeout=60, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "--load" in bad.stderr
    shown = subprocess.run([*ADLRO, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert shown.returncode == 0
    assert "--runtime" in shown.stdout


def test_adlro_becomes_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that SIGKILL, which no process can pass on, ends it too."""
    from typer.testing import CliRunner

    from adlro.cli.app import app

    begun: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr("os.execve", lambda *given: begun.append(given))
    assert CliRunner().invoke(app, ["evaluate", "--load", "0.9", "--help"]).exit_code == 0
    ((program, arguments, environment),) = begun
    assert program == sys.executable
    assert arguments == [*MODULE, "--load", "0.9", "--help"]
    assert environment["PYTHONPATH"]


def test_a_written_list_is_evaluated_on_the_cluster_of_a_scenario(tmp_path: Path) -> None:
    jobs = draw_jobs(load_scenario("gangs"), load=0.9, rng=np.random.default_rng(1), count=40)
    trace = tmp_path / "jobs.csv"
    write_paper_csv(trace, jobs)
    request = Request(
        policies=("fcfs", "hold_gang"),
        scenarios=("trace",),
        loads=(0.9,),
        jobs=40,
        lists=1,
        trace=str(trace),
        cluster="gangs",
    )
    found = evaluate(request, processes=1, time_decisions=False)
    (case,) = found.cases
    assert case.cluster == load_scenario("gangs").cluster
    assert max(job.gpu_count for job in case.job_list(0)) == 8
    assert not any(each.stuck.any() for each in found.figures.values())
