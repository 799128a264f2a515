"""The documents' figures: the arithmetic by hand, the bound on a list worked by hand, the tables from a small run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from adlro.decide.policies import POLICIES
from adlro.lab.evaluate import Request, evaluate
from adlro.lab.evaluate.cases import build_cases
from adlro.lab.evaluate.document import build_document
from adlro.lab.evaluate.request import parse_loads, parse_policies, parse_scenarios
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.sim.batch import simulate
from adlro.state.job_arrays import JobArrays, empty_job_arrays
from benchmarks import evaluation_tables, paper_claims, paper_figures, paper_tables
from benchmarks.evaluation_runs import BOUND, Runs
from benchmarks.paper_claims import METHOD, MINUTE_H, SECOND_H, Row
from benchmarks.throughput_bound import makespan_bound_s


def test_littles_law_on_a_row_worked_by_hand() -> None:
    # 10 jobs an hour that stay 30 minutes: 5 in the system. Half of 16 GPUs busy: 8, so 1.6 for each of the 5.
    row = Row("by hand", jobs_per_h=10.0, jct=30.0, utilization=0.5)
    assert paper_claims.jobs_in_system(row, MINUTE_H) == pytest.approx(5.0)
    assert paper_claims.gpus_needed(row, MINUTE_H) == pytest.approx(1.6)
    assert paper_claims.greatest_utilization(row, MINUTE_H) == 1.0
    assert paper_claims.greatest_utilization(row, SECOND_H) == pytest.approx(5.0 / 60.0)


def test_the_papers_row_cannot_hold_in_seconds() -> None:
    assert paper_claims.jobs_in_system(METHOD, SECOND_H) == pytest.approx(0.0444, abs=1e-4)
    for row in paper_claims.rows():
        assert paper_claims.greatest_utilization(row, SECOND_H) < row.utilization
        assert paper_claims.gpus_needed(row, SECOND_H) > paper_claims.GPUS
        assert paper_claims.gpus_needed(row, MINUTE_H) < paper_claims.GPUS


def one_node(gpus: int, cores: int) -> Cluster:
    held = tuple(Gpu(gpu_id=f"n/{slot}", gpu_model="v100_sxm2", memory_mib=16000) for slot in range(gpus))
    return Cluster("c", (Node(node_id="n", cpu_cores=cores, memory_mib=100_000, gpus=held),))


def job_list(submit_s: list[float], work_s: list[float], cores: list[int]) -> JobArrays:
    count = len(submit_s)
    ones = np.ones((1, count), dtype=np.int64)
    return empty_job_arrays(1, count, 1)._replace(
        job_count=np.array([count]),
        submit_s=np.array([submit_s]),
        duration_s=np.array([work_s])[:, :, None],
        expected_s=np.array([work_s])[:, :, None],
        job_type=ones,
        cores=np.array([cores]),
        memory_mib=ones,
        gpu_memory_mib=ones,
        priority=np.ones((1, count)),
    )


@pytest.mark.parametrize(
    ("gpus", "cores", "jobs", "least_s"),
    [
        (1, 8, job_list([0.0, 1.0], [4.0, 4.0], [1, 1]), 8.0),  # one GPU: 8 s of work
        (2, 8, job_list([0.0, 1.0], [4.0, 4.0], [1, 1]), 5.0),  # the second, from 1 on
        (2, 8, job_list([0.0, 0.0], [4.0, 4.0], [8, 4]), 6.0),  # 48 core-seconds on 8 cores
        (
            2,
            8,
            job_list([0.0, 10.0, 10.0, 10.0], [1.0, 4.0, 4.0, 4.0], [1, 1, 1, 1]),
            16.0,
        ),  # 12 s on two GPUs, from 10
    ],
)
def test_the_bound_by_hand(gpus: int, cores: int, jobs: JobArrays, least_s: float) -> None:
    assert makespan_bound_s(one_node(gpus, cores), jobs, 0) == pytest.approx(least_s, abs=1e-6)


def test_the_bound_says_what_it_cannot_count() -> None:
    mixed = tuple(Gpu(gpu_id=m, gpu_model=m, memory_mib=16000) for m in ("v100_sxm2", "rtx_2080_ti"))
    cluster = Cluster("c", (Node(node_id="n0", cpu_cores=4, memory_mib=1000, gpus=mixed),))
    with pytest.raises(ValueError, match="n0 has several kinds"):
        makespan_bound_s(cluster, job_list([0.0], [1.0], [1]), 0)


@pytest.mark.parametrize("policy", ["heft", "hold_greedy"])
def test_no_policy_ends_before_the_bound(policy: str) -> None:
    (case,), _ = build_cases(Request(policies=(policy,), loads=(1.1,), jobs=20, lists=2, seed=5))
    arrays = case.arrays(0, 2)
    outcome = simulate(case.cluster, arrays, POLICIES[policy].for_load(1.1).act)
    for number in range(2):
        makespan_s = outcome.end_s[number].max() - arrays.submit_s[number, 0]
        assert makespan_bound_s(case.cluster, arrays, number) <= makespan_s * (1 + 1e-9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs as `paper_figures run` leaves them, of few and short lists."""
    folder = tmp_path_factory.mktemp("runs")
    policies = ("fcfs", "static", "sjf", "hold_greedy", "min_min")
    loads = (0.6, 0.9, 1.1)
    exact = build_document(
        evaluate(Request(policies=policies, loads=loads, jobs=60, lists=7), processes=1, time_decisions=False)
    )
    batch = build_document(
        evaluate(Request(policies=policies, scenarios=("batch",), jobs=60, lists=7), processes=1, time_decisions=False)
    )
    took = {"wall_s": 2.0, "cpu_s": 1.0, "system_load_before": 0.5}
    for name in paper_figures.RUNS:
        (folder / f"{name}.json").write_text(json.dumps(batch if name.startswith("batch") else exact))
        (folder / f"{name}.took.json").write_text(json.dumps(took))
    cell = paper_figures.bound_cell(12, 1.1, lists=2)
    cells = [cell | {"jobs": jobs, "load": load} for jobs, load in paper_tables.BOUND_CASES]
    (folder / BOUND).write_text(json.dumps(cells))
    return folder


def test_every_table_is_whole(folder: Path) -> None:
    runs = Runs(folder)
    for name, make in paper_figures.TABLES.items():
        lines = make(runs).splitlines()
        assert len(lines) > 2, name
        assert len({line.count("|") for line in lines}) == 1, name
        assert "nan" not in make(runs), name


def test_figures_stand_below_their_names(folder: Path) -> None:
    runs = Runs(folder)
    head, _, *lines = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in evaluation_tables.policies_table("paper_256")(runs).splitlines()
    )
    line = dict(zip(head, next(each for each in lines if each[:2] == ["1.1", "`min_min`"]), strict=True))
    row = runs.row("paper_256", 1.1, "min_min")
    assert len(line) == len(head)
    assert line["mean JCT, s"].startswith(f"{row['mean_jct_s']:.1f} (")
    assert line["p99 JCT, s"] == f"{row['p99_jct_s']:.0f}"
    assert line["p95 JCT, s"] == f"{row['p95_jct_s']:.0f}"
    assert line["longest wait, s"] == f"{row['max_wait_s']:.0f}"
    (entry,) = [each for each in runs.paired("paper_256", 1.1, "fcfs") if each["policy"] == "min_min"]
    for heading, key in (
        ("mean JCT", "jct"),
        ("p95 JCT", "p95_jct"),
        ("longest wait", "max_wait"),
        ("jobs/h", "throughput"),
    ):
        percent = [100 * (each - 1) for each in (entry[f"{key}_ratio"], *entry[f"{key}_ratio_ci95"])]
        assert line[f"{heading} against fcfs, %"] == evaluation_tables.signed(*percent)
    assert (line["overdue, %"], line["fallback, %"]) == ("0.00", "0.00")
    assert line["bounded slowdown"] == f"{row['bounded_slowdown']:.2f}"
    assert line["jobs/h"].startswith(f"{row['throughput_jobs_per_h']:.0f} (")
    assert line["busy, %"] == f"{100 * row['utilization_busy']:.1f}"
    assert line["useful, %"].startswith(f"{100 * row['utilization_useful']:.1f} (")
    assert line["Jain"] == f"{row['fairness_jain']:.3f}"
    assert line["HyperScore"].startswith(f"{row['hyperscore']:.1f} (")


def test_claims_are_judged_by_the_interval(folder: Path) -> None:
    runs = Runs(folder)
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in paper_tables.claims_table(runs).splitlines()
    ]
    for claim, _, _, figure, reached, *_ in lines[2:]:
        claimed = float(claim.rpartition(": ")[2].split()[0])
        value, low, high = (float(each) for each in re.findall(r"[+-][\d.]+", figure))
        assert low <= value <= high
        better = -1.0 if claim.startswith("JCT") else 1.0
        worst, best = sorted((better * low, better * high))
        # The table's figures are rounded.
        if reached == "yes":
            assert worst >= better * claimed - 0.1
        elif reached == "no":
            assert best < better * claimed + 0.1
        else:
            assert reached == "open"


def test_guessed_runtimes_are_shown_with_their_tails(folder: Path) -> None:
    runs = Runs(folder)
    head, _, *lines = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in evaluation_tables.estimates_table(runs).splitlines()
    )
    rows = [dict(zip(head, line, strict=True)) for line in lines]
    assert len(rows) == 3 * 5 * 4
    for row in rows:
        exact = runs.row("paper_256", float(row["load"]), row["policy"].strip("`"))
        guessed = "" if row["known of runtimes"] == "true" else " (+0.0 %)"  # the test's runs are all the same one
        assert row["p95 JCT, s"] == f"{exact['p95_jct_s']:.1f}{guessed}"
        assert row["jobs/h"] == f"{exact['throughput_jobs_per_h']:.0f}{guessed}"
        assert row["longest wait, s"].startswith(f"{exact['max_wait_s']:.1f}")


def test_a_claim_is_shown_with_what_its_best_policy_does_to_the_tails(folder: Path) -> None:
    runs = Runs(folder)
    head, _, *lines = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in paper_tables.claims_table(runs).splitlines()
    )
    for line in lines:
        row = dict(zip(head, line, strict=True))
        baseline = row["claim"].partition(" against ")[2].partition(":")[0]
        jobs, _, load = row["lists"].partition(" jobs, ")
        run = f"{'batch' if load == 'all at once' else 'paper'}_{jobs}"
        at = None if load == "all at once" else float(load.removeprefix("load "))
        (entry,) = [
            each for each in runs.paired(run, at, baseline) if f"`{each['policy']}`" == row["best of all policies"]
        ]
        for heading, key in (("p95 JCT", "p95_jct"), ("longest wait", "max_wait"), ("throughput", "throughput")):
            if entry[f"{key}_ratio"] is None:  # in no list of the baseline did anybody wait
                assert (row[f"its {heading}, %"], key) == ("", "max_wait")
                continue
            assert row[f"its {heading}, %"].startswith(f"{100 * (entry[f'{key}_ratio'] - 1):+.1f} (")


def test_marks_are_filled_and_unknown_ones_refused() -> None:
    text = "a\n<!-- figures: little -->\nold\n<!-- end -->\nb"
    assert paper_figures.filled(text, {"little": "new"}) == "a\n<!-- figures: little -->\nnew\n<!-- end -->\nb"
    with pytest.raises(KeyError):
        paper_figures.filled(text, {})


def test_the_documents_have_every_table_and_the_arithmetic_is_current() -> None:
    texts = {document: document.read_text() for document in paper_figures.DOCUMENTS}
    marks = [name for text in texts.values() for name in re.findall(r"<!-- figures: (\w+) -->", text)]
    assert sorted(marks) == sorted(paper_figures.TABLES)
    fixed = {
        "little": paper_claims.little_table(),
        "text": paper_claims.text_table(),
        "hyperscore": paper_tables.hyperscore_table(),
    }
    for text in texts.values():
        for name, table in re.findall(r"<!-- figures: (\w+) -->\n(.*?)\n<!-- end -->", text, re.DOTALL):
            assert name not in fixed or table == fixed[name]


def test_the_documents_give_the_commands_that_run() -> None:
    for document in paper_figures.DOCUMENTS:
        named = re.findall(r"^python -m benchmarks\.paper_figures (.*?)(?: *#.*)?$", document.read_text(), re.MULTILINE)
        assert named
        for arguments in named:
            paper_figures.command().parse_args(arguments.split())


def test_every_run_is_one_that_evaluate_takes() -> None:
    for options in paper_figures.RUNS.values():
        values = dict(zip(options.split()[::2], options.split()[1::2], strict=True))
        request = Request(
            policies=parse_policies(values["--policies"]),
            scenarios=parse_scenarios(values["--scenario"]),
            loads=parse_loads(values["--load"]) if "--load" in values else None,
            jobs=int(values["--jobs"]),
            lists=int(values["--seeds"]),
            runtime=values.get("--runtime", "true"),
        )
        assert build_cases(request)[0]
