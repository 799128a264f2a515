"""The evaluation as a function: same lists for all, chunks and processes change nothing, what goes wrong is said."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.fcfs import Fcfs
from adlro.errors import InternalError, InvalidInput
from adlro.lab.evaluate import Request, evaluate
from adlro.lab.evaluate import evaluation as module
from adlro.lab.evaluate import tasks as tasks_module
from adlro.lab.evaluate.cases import build_cases
from adlro.lab.evaluate.document import build_document
from adlro.lab.evaluate.partial import PartialResults
from adlro.lab.evaluate.request import parse_loads, parse_policies
from adlro.state.observation import HOLD, Floats, Ints, Observation
from adlro.workload.capacity import offered_load
from tests.policies import there

ROW_KEYS = """policy scenario load jobs seeds mean_jct_s p95_jct_s p99_jct_s weighted_jct_s throughput_jobs_per_h
utilization_busy utilization_useful makespan_s max_wait_s bounded_slowdown fairness_jain decision_us_p50 decision_us_p99
mean_jct_s_ci95 p95_jct_s_ci95 p99_jct_s_ci95 weighted_jct_s_ci95 throughput_jobs_per_h_ci95 makespan_s_ci95
hyperscore utilization_busy_ci95 utilization_useful_ci95 max_wait_s_ci95 bounded_slowdown_ci95 fairness_jain_ci95
hyperscore_ci95"""
PAIRED_KEYS = """policy baseline scenario load jobs jct_ratio jct_ratio_ci95 throughput_ratio throughput_ratio_ci95"""


class Renamed(Fcfs):
    """FCFS under another name."""


class NeverStarts(Policy):
    """Always holds, allowed or not."""

    def act(self, observation: Observation) -> Ints:
        return np.full((len(observation.time_s), 2), HOLD, dtype=np.int64)


class StartsWhatCannotStart(Policy):
    """The last job on the first GPU, whatever it asks for."""

    def scores(self, observation: Observation) -> Floats:
        raise AssertionError

    def act(self, observation: Observation) -> Ints:
        return np.tile(np.array([[observation.job_waiting.shape[1], 0]]), (len(observation.time_s), 1))


def small(**changes: Any) -> Request:
    return Request(**{"policies": ("fcfs", "sjf"), "loads": (0.9,), "jobs": 24, "lists": 5, **changes})


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return build_document(evaluate(small(policies=("sjf", "static"), own={"mine": Renamed()}), processes=1))


def test_rows_and_comparisons_have_all_their_keys(document: dict[str, Any]) -> None:
    assert [row["policy"] for row in document["rows"]] == ["sjf", "static", "mine"]
    for row in document["rows"]:
        assert not set(ROW_KEYS.split()) - set(row)
        assert (row["jobs"], row["seeds"], row["load"], row["scenario"]) == (24, 5, 0.9, "paper")
        assert row["mean_jct_s_ci95"][0] <= row["mean_jct_s"] <= row["mean_jct_s_ci95"][1]
        assert row["decision_us_p99"] >= row["decision_us_p50"] > 0
    for entry in document["paired"]:
        assert not set(PAIRED_KEYS.split()) - set(entry)
    assert {(each["policy"], each["baseline"]) for each in document["paired"]} == {
        ("sjf", "fcfs"),
        ("static", "fcfs"),
        ("mine", "fcfs"),
        ("sjf", "static"),
        ("mine", "static"),
    }
    json.dumps(document, allow_nan=False)


def test_a_policy_of_ones_own_that_is_fcfs_scores_as_fcfs(document: dict[str, Any]) -> None:
    (mine,) = (row for row in document["rows"] if row["policy"] == "mine")
    assert mine["hyperscore"] == pytest.approx(109.96, abs=0.005)
    (entry,) = (each for each in document["paired"] if (each["policy"], each["baseline"]) == ("mine", "fcfs"))
    assert (entry["jct_ratio"], *entry["jct_ratio_ci95"]) == (1.0, 1.0, 1.0)


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    rows = [{key: value for key, value in row.items() if "decision" not in key} for row in document["rows"]]
    return {"rows": rows, "paired": document["paired"], "statistics": document["statistics"]}


@pytest.mark.slow
def test_lists_and_figures_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    request = small(policies=there(), runtime="noise:0.5")
    whole = build_document(evaluate(request, processes=1, time_decisions=False))
    monkeypatch.setattr(tasks_module, "_WIDE", 48)
    in_parts = build_document(evaluate(request, processes=1, time_decisions=False))
    assert len(tasks_module.cut(build_cases(request)[0], ["a"])) == 3
    assert without_times(whole) == without_times(in_parts)


@pytest.mark.slow
def test_one_process_and_two_give_the_same() -> None:
    request = small(policies=("sjf",), loads=(0.6, 1.1), lists=60)
    one = build_document(evaluate(request, processes=1, time_decisions=False))
    two = build_document(evaluate(request, processes=2, time_decisions=False))
    assert without_times(one) == without_times(two)
    assert two["meta"]["machine"]["processes"] == 2


def test_the_same_jobs_at_every_load() -> None:
    slow, fast = build_cases(small(loads=(0.5, 1.0)))[0]
    jobs, sooner = slow.job_list(3), fast.job_list(3)
    assert [job.work_s for job in jobs] == [job.work_s for job in sooner]
    assert jobs[-1].submit_s == pytest.approx(2 * sooner[-1].submit_s, abs=0.1)
    assert slow.job_list(3) != slow.job_list(2)


def test_finished_parts_are_not_simulated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "_WIDE", 48)
    partial = PartialResults(tmp_path / "parts")
    partial.prepare()
    ran: list[tasks_module.Task] = []
    run = tasks_module.Setup.run

    def stop_after_three(self: tasks_module.Setup, task: tasks_module.Task) -> Any:
        if len(ran) == 3:
            raise KeyboardInterrupt
        ran.append(task)
        return run(self, task)

    monkeypatch.setattr(tasks_module.Setup, "run", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        evaluate(small(), processes=1, partial=partial, time_decisions=False)

    def count(self: tasks_module.Setup, task: tasks_module.Task) -> Any:
        ran.append(task)
        return run(self, task)

    monkeypatch.setattr(tasks_module.Setup, "run", count)
    (broken, *_) = sorted((tmp_path / "parts").iterdir())
    broken.write_bytes(broken.read_bytes()[:-50])  # a part that was cut off is none
    resumed = build_document(evaluate(small(), processes=1, partial=partial, time_decisions=False))
    assert len(ran) == 3 + 4  # of six, one of them broken
    straight = build_document(evaluate(small(), processes=1, time_decisions=False))
    assert without_times(resumed) == without_times(straight)
    other = ran.copy()
    evaluate(small(seed=1), processes=1, partial=partial, time_decisions=False)
    assert len(ran) > len(other) + 5  # nothing of another seed is taken
    partial.clear()
    assert not (tmp_path / "parts").exists()


def test_a_policy_that_gets_stuck_is_named_with_list_and_seed() -> None:
    result = evaluate(small(own={"never": NeverStarts()}, seed=7), processes=1, time_decisions=False)
    assert {(each.policy, each.number) for each in result.stuck} == {("never", number) for number in range(5)}
    assert "policy never got stuck in paper at load 0.9, list 0 of seed 7: 24 jobs" in result.stuck[0].sentence
    assert [row["policy"] for row in build_document(result)["rows"]] == ["fcfs", "sjf"]


def test_an_impossible_action_is_told_with_the_policy() -> None:
    with pytest.raises(InternalError, match=r"policy wild on lists 0 to 4 of paper at load 0\.9"):
        evaluate(small(own={"wild": StartsWhatCannotStart()}), processes=1)


def test_windows_of_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.swf"
    lines = [f"{i} {10 * i} -1 {30 + i} 1 -1 -1 1 60 -1 1 {i % 3} 1 -1 -1 -1 -1 -1" for i in range(40)]
    trace.write_text("\n".join(lines) + "\n")
    (case,), _ = build_cases(Request(policies=("fcfs",), scenarios=("trace",), trace=str(trace), jobs=10, lists=4))
    assert all(case.job_list(number)[0].submit_s == 0 for number in range(4))
    assert len({case.job_list(number)[0].work_s for number in range(4)}) > 1
    (whole,), _ = build_cases(Request(policies=("fcfs",), scenarios=("trace",), trace=str(trace)))
    assert (whole.jobs, whole.lists) == (40, 1)
    (scaled,), _ = build_cases(Request(policies=("fcfs",), scenarios=("trace",), trace=str(trace), loads=(2.0,)))
    assert whole.load is not None
    assert scaled.job_list(0)[-1].submit_s == pytest.approx(390 * whole.load / 2.0, rel=1e-3)


def uneven_trace(tmp_path: Path) -> str:
    """200 jobs: one each 100 s, then one each second, then 40 at once."""
    gaps_s = [100.0] * 80 + [1.0] * 80 + [0.0] * 40
    submit_s = np.cumsum(gaps_s)
    lines = [f"{i} {at:.0f} -1 60 1 -1 -1 1 60 -1 1 {i % 3} 1 -1 -1 -1 -1 -1" for i, at in enumerate(submit_s)]
    (tmp_path / "uneven.swf").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "uneven.swf")


@pytest.mark.slow
def test_every_window_of_a_trace_offers_the_load(tmp_path: Path) -> None:
    trace = uneven_trace(tmp_path)
    request = Request(policies=("fcfs",), scenarios=("trace",), trace=trace, jobs=10, lists=30, loads=(0.6, 0.9))
    cases, _ = build_cases(request)
    firsts = set()
    for case in cases:
        for number in range(30):
            jobs = case.job_list(number)
            assert offered_load(case.cluster, jobs, case.speeds) == pytest.approx(case.load, rel=1e-3)
            firsts.add(jobs[0].source_line)
    assert len(firsts) > 15
    assert [job.work_s for job in cases[0].job_list(7)] == [job.work_s for job in cases[1].job_list(7)]
    # The first list is drawn like the others; a list's jobs do not depend on how many lists there are.
    first_lines = {
        build_cases(dataclasses.replace(request, seed=seed))[0][0].job_list(0)[0].source_line for seed in range(4)
    }
    assert len(first_lines) > 1
    more = build_cases(dataclasses.replace(request, lists=40))[0][0]
    assert more.job_list(3) == cases[0].job_list(3)
    assert more.digest == cases[0].digest
    (one,), _ = build_cases(dataclasses.replace(request, lists=1, loads=(0.9,)))
    assert one.job_list(0)[0].source_line == 1
    assert one.digest != cases[1].digest


def test_what_windows_at_their_own_times_offer_is_told(tmp_path: Path) -> None:
    request = Request(policies=("fcfs",), scenarios=("trace",), trace=uneven_trace(tmp_path), jobs=10, lists=30)
    (case,), notes = build_cases(request)
    loads = [offered_load(case.cluster, case.job_list(number), case.speeds) for number in range(30)]
    assert max(loads) > 20 * min(loads)
    assert any(f"offer loads from {min(loads):.3g} to {max(loads):.3g}; --load L" in note for note in notes)


def test_jobs_at_once_and_loads_out_of_reach_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "batch.swf").write_text("1 5 -1 60 1 -1 -1 1 60 -1 1 1 1 -1 -1 -1 -1 -1\n" * 9)
    request = Request(policies=("fcfs",), scenarios=("trace",), trace=str(tmp_path / "batch.swf"), loads=(0.9,))
    with pytest.raises(
        InvalidInput, match=r"^load: .*batch\.swf: all 9 jobs of a list are submitted at once.*omit --load"
    ):
        build_cases(request)
    (case,), _ = build_cases(dataclasses.replace(request, loads=None, jobs=4, lists=3))
    assert [job.submit_s for job in case.job_list(1)] == [0.0] * 4
    (tmp_path / "long.swf").write_text(
        "".join(f"1 {10 * i} -1 30000000 1 -1 -1 1 60 -1 1 1 1 -1 -1 -1 -1 -1\n" for i in range(9))
    )
    with pytest.raises(InvalidInput, match=r"^load: .*long\.swf: at 1e-06 the jobs of a list would come over"):
        build_cases(dataclasses.replace(request, trace=str(tmp_path / "long.swf"), loads=(1e-6,)))


def test_results_of_other_code_are_not_taken_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job's record, the cluster's, and the versions of what computes are part of what a result depends on."""
    try:
        tasks_module.code_digest.cache_clear()
        before = tasks_module.code_digest()
        for module_name in ("adlro.records.jobs", "adlro.records.cluster"):
            other = tmp_path / f"{module_name}.py"
            other.write_text("")
            with monkeypatch.context() as patch:
                patch.setattr(f"{module_name}.__file__", str(other))
                tasks_module.code_digest.cache_clear()
                assert tasks_module.code_digest() != before
        for package in ("scipy", "onnxruntime"):
            with monkeypatch.context() as patch:
                patch.setattr(
                    "importlib.metadata.version", lambda name, other=package: "0" if name == other else version(name)
                )
                tasks_module.code_digest.cache_clear()
                assert tasks_module.code_digest() != before
    finally:
        tasks_module.code_digest.cache_clear()


@pytest.mark.parametrize(
    ("digest", "module"),
    [
        (tasks_module.code_digest, "adlro.decide.planes.fill"),
        (tasks_module.code_digest, "adlro.decide.rollouts.lookahead"),
        (tasks_module.code_digest, "adlro.decide.hold_rule"),
        (tasks_module.code_digest, "adlro.state.candidate_table"),
        (tasks_module.code_digest, "adlro.sim.kernel"),
        (tasks_module.code_digest, "adlro.numeric.exact"),
        (tasks_module.learning_digest, "adlro.services.decompose.runtimes.predictor"),
        (tasks_module.learning_digest, "adlro.services.orchestrator.session.core.round"),
    ],
)
def test_results_depend_on_every_file_of_what_computes_them(
    monkeypatch: pytest.MonkeyPatch, digest: Any, module: str
) -> None:
    found = importlib.util.find_spec(module)
    assert found is not None
    read = Path.read_bytes
    before = digest.__wrapped__()

    def changed(path: Path) -> bytes:
        return read(path) + (b"# changed" if path.resolve() == Path(str(found.origin)).resolve() else b"")

    monkeypatch.setattr(Path, "read_bytes", changed)
    assert digest.__wrapped__() != before


def test_a_batch_is_simulated_once_whatever_the_loads() -> None:
    cases, notes = build_cases(small(scenarios=("batch",), loads=(0.6, 0.9)))
    assert [case.load for case in cases] == [0.6]
    assert any("the load has no meaning" in note for note in notes)


def test_few_lists_are_told() -> None:
    rough = "paper: intervals over 5 lists are rough; use 20 or more (--seeds)"
    assert rough in build_cases(small())[1]
    for lists in (1, 20):
        assert not any("rough" in note for note in build_cases(small(lists=lists))[1])


def test_all_policies_lists_as_one_sample_have_no_p_value(document: dict[str, Any]) -> None:
    found = {each["policy"]: each["p_value"] for each in document["statistics"]["jct_on_utilization"]}
    assert found["all policies"] is None
    assert 0 <= found["sjf"] <= 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"policies": ("sfj",)}, "unknown policy 'sfj'; did you mean sjf"),
        ({"scenarios": ("papre",)}, "unknown scenario 'papre'; did you mean paper"),
        ({"loads": (0.0,)}, "load: must be"),
        ({"loads": (float("nan"),)}, "load: must be"),
        ({"jobs": 0}, "jobs: must be at least 1, not 0"),
        ({"lists": 0}, "seeds: must be at least 1, not 0"),
        ({"scenarios": ("trace",)}, "--trace"),
        ({"trace": "x.swf"}, "a trace is the scenario trace"),
        ({"runtime": "nois"}, "runtime: must be"),
        ({"pairs": "famly"}, "pairs: unknown knowledge of pairs 'famly'; did you mean family"),
        ({"own": {"fcfs": Fcfs()}}, "registered"),
    ],
)
def test_what_has_no_sense_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        small(**changes)
    assert said in str(refused.value)


def test_jobs_that_may_share_have_the_family_of_their_application() -> None:
    (case,), _ = build_cases(small(scenarios=("shared",), pairs="family"))
    arrays, jobs = case.arrays(0, 1), case.job_list(0)
    assert arrays.shareable[0].all()
    names = case.true_pairs.applications
    assert [names[family] for family in arrays.family[0]] == [job.application for job in jobs]
    assert case.true_pairs.applications == case.expected_pairs.applications
    assert (case.true_pairs.kept != case.expected_pairs.kept).any()
    (other,), _ = build_cases(small(scenarios=("shared",)))
    assert (other.true_pairs.kept == other.expected_pairs.kept).all()
    assert other.digest != case.digest


def test_jobs_of_a_trace_that_fit_nowhere_are_told_before_it_runs(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    header = "submit_s,user,application,job_type,work_s,gpu_memory_mib,cpu_cores,memory_mib,priority"
    trace.write_text(
        f"{header}\n0,u,yolov3,machine_learning,5,1000,4,1000,1\n1,u,yolov3,machine_learning,5,99999,4,1000,1\n"
    )
    with pytest.raises(InvalidInput, match=r"jobs.csv: 1 of 2 jobs.*line 3: gpu_memory_mib: asks for 99999"):
        build_cases(Request(policies=("fcfs",), scenarios=("trace",), trace=str(trace)))


def test_jobs_of_a_trace_keep_their_gpus_where_the_cluster_can_hold_them(tmp_path: Path) -> None:
    trace = tmp_path / "philly.csv"
    gpus = (8, 1, 16, 2)
    lines = [f"2017-09-07 03:58:{second:02d},3600,{each},0,6214e9" for second, each in enumerate(gpus)]
    trace.write_text("\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *lines]) + "\n")
    asked = Request(policies=("fcfs",), scenarios=("trace",), trace=str(trace))
    (case,), notes = build_cases(asked)
    assert [job.gpu_count for job in case.trace or ()] == [8, 1, 2]
    assert any("(the first: line 4): ask for more GPUs of one model" in note for note in notes)
    (case,), notes = build_cases(dataclasses.replace(asked, multi_gpu="one"))
    assert [job.gpu_count for job in case.trace or ()] == [1, 1, 1, 1]
    for changes, said in (
        ({"multi_gpu": "split"}, "multi_gpu: unknown way with jobs of several GPUs 'split'"),
        ({"multi_gpu": "one", "trace": None, "scenarios": ("paper",)}, "multi_gpu: is about a trace's jobs"),
    ):
        with pytest.raises(InvalidInput, match=said):
            dataclasses.replace(asked, **changes)


def test_options_as_text() -> None:
    assert parse_loads("0.9, 0.6,0.9") == (0.6, 0.9)
    assert set(parse_policies("all,-hungarian")) == set(POLICIES) - {"hungarian"}
    for text in ("", "0", "-1", "inf", "0.6,x", ","):
        with pytest.raises(InvalidInput):
            parse_loads(text)
    with pytest.raises(InvalidInput, match="none is left"):
        parse_policies("fcfs,-fcfs")


def test_where_processes_are_counted() -> None:
    assert module.cores() >= 1


def test_what_gangs_lose_when_spread_is_known_as_well_as_their_runtimes() -> None:
    known = {}
    for runtime in ("true", "type"):
        (case,) = build_cases(
            Request(policies=("fcfs",), scenarios=("gangs",), loads=(0.9,), jobs=40, lists=2, runtime=runtime)
        )[0]
        known[runtime] = case.arrays(0, 2)
    true, by_type = known["true"], known["type"]
    gangs = true.gpu_count > 1
    assert gangs.any()
    np.testing.assert_array_equal(true.spread_speed, true.expected_spread_speed)
    np.testing.assert_array_equal(true.spread_speed, by_type.spread_speed)
    assert (by_type.expected_spread_speed != by_type.spread_speed)[gangs].any()
    assert (by_type.expected_spread_speed[~gangs] == 1.0).all()
