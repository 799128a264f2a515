"""The explanation of one job as lines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.cli.top.explaining import Explanation, alike, decision_lines, explanation_lines
from adlro.cli.top.job_rows import Moment, StartForecast, start_text
from adlro.cli.top.lines import plain, width_of
from adlro.cli.top.model import TopModel
from adlro.placement import NOWHERE, Placement
from adlro.records.decisions import Candidate, Decision, DecisionBasis, MaskedCandidate, ShadowDecision
from adlro.records.jobs import JobState, PendingReason
from adlro.records.predictions import PredictionBasis, RuntimePrediction
from adlro.records.waiting import ExpectedStart, GpuObstacle, WaitingChange, WaitingChangeKind, WaitingExplanation
from tests.unit.cli.top.records import description, gpu_state, running, snapshot, spec, status, waiting

NOW = Moment(100.0, 0.0)


def decision(**fields: object) -> Decision:
    given_fields = {
        "decision_id": "",
        "job_id": "job-1",
        "placement": NOWHERE,
        "policy": "dqn",
        "time_s": 90.0,
        "queue_length": 3,
        "candidates": (),
        "masked": (),
        "summary": "job-1 is number 1 in the queue: waits for a GPU",
        "decision_us": 0.0,
        "attempt": 0,
    }
    return Decision(**{**given_fields, **fields})  # type: ignore[arg-type]


def prediction(model: str = "v100_sxm2") -> RuntimePrediction:
    return RuntimePrediction(model, 40.0, 20.0, 70.0, 0.8, PredictionBasis.JOB_TYPE, 0.1)


def explained(**fields: object) -> WaitingExplanation:
    given_fields = {
        "job_id": "job-1",
        "time_s": 100.0,
        "reason": PendingReason.RESOURCES,
        "sentence": "waits for a GPU",
        "queue_place": 37,
        "queue_length": 640,
        "obstacles": {GpuObstacle.BUSY: 15, GpuObstacle.NODE_FULL: 1},
        "expected_start": ExpectedStart(280.0, 400.0, 640.0, 99.5, 200, 0.83),
    }
    return WaitingExplanation(**{**given_fields, **fields})  # type: ignore[arg-type]


def text_of(known: Explanation, width: int = 120, model: TopModel | None = None) -> str:
    cells = model.cells() if model is not None else []
    return "\n".join(plain(line) for line in explanation_lines(known, cells, NOW, None, width))


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("busy with job-12 for about 8 s", "busy with a job"),
        (
            "busy with job-7, which has run 44.3 s longer than expected",
            "busy with a job, which has run longer than expected",
        ),
        ("needs 12000 MiB of GPU memory, it has 11264", "needs 12000 MiB of GPU memory, it has 11264"),
    ],
)
def test_reasons_of_many_gpus_are_counted_together(reason: str, told: str) -> None:
    assert alike(reason) == told


def test_a_waiting_job() -> None:
    masked = [MaskedCandidate(f"v-{n}", "v100", f"busy with job-{n} for about {n} s") for n in range(900)]
    masked += [MaskedCandidate("t-1", "rtx", "needs 12000 MiB"), MaskedCandidate("t-2", "rtx", "its node is drained")]
    text = text_of(
        Explanation(waiting(1, message="waits for a GPU"), decision(masked=tuple(masked)), predictions=(prediction(),))
    )
    assert "waits 1m 30s" not in text  # 90 s
    assert "waits 90.0 s" in text
    assert "900 GPUs: busy with a job" in text
    assert "t-1: needs 12000 MiB" in text
    assert text.count("waits for a GPU") == 1  # the summary has the message
    assert "20.0 s to 70.0 s (80 %)" in text
    assert "Candidates" not in text


def test_when_a_waiting_job_is_expected_to_start() -> None:
    change = WaitingChange(WaitingChangeKind.CPU_CORES, 4, (), 1, "ask for 4 cores: 1 GPU fits now")
    text = text_of(Explanation(waiting(1, message="waits for a GPU"), waiting=explained(changes=(change,))), width=160)
    assert "expected     in 3m 0s to 9m 0s, most likely" in text
    assert "(83% of the last 200 such forecasts came in)" in text
    assert "37 of 640 by submission" in text
    assert "15 busy" in text
    assert "1 idle, and their nodes lack cores or memory" in text
    assert "you could    ask for 4 cores: 1 GPU fits now" in text
    assert text.count("waits for a GPU") == 1
    none = explained(expected_start=None, no_expected_start="the cluster is paused")
    assert "not known: the cluster is paused" in text_of(Explanation(waiting(1), waiting=none))


@pytest.mark.parametrize(
    ("low_s", "high_s", "told"),
    [
        (100.0, 100.4, "in 0s"),
        (108.0, 220.0, "in 8s-2m"),
        (820.0, 12_100.0, "in 12m-3h20"),
        (20_100.0, 90_100.0, "5h33-25h00"),
    ],
)
def test_expected_starts_fit_their_column(low_s: float, high_s: float, told: str) -> None:
    forecast = StartForecast(low_s, low_s, high_s, 100.0)
    assert start_text(forecast, NOW) == told
    assert start_text(forecast, Moment(None, 0.0)) == told  # a submitter does not know the cluster's time
    assert len(told) <= 11


def test_more_reasons_than_fit_are_counted() -> None:
    masked = tuple(MaskedCandidate(f"v-{n}", "v100", f"reason {'x' * n}") for n in range(20))
    assert "and 8 other reasons" in text_of(Explanation(waiting(1), decision(masked=masked)))


def test_a_running_job_with_its_gpu() -> None:
    model = TopModel()
    job = running(1, 2, "volta-0/1", start_s=60.0)
    for event in snapshot(job, revision=2):
        model.take_job(event)
    model.take_description(description(), 0.0)
    model.take_status(status(), 0.0)
    model.take_gpus(gpu_state([0.0, 0.75, 0.0, 0.0, 0.0, 0.0]))
    text = text_of(Explanation(job, None, None, (prediction(),), "epoch 1\nloss \x1b[2J\n"), model=model)
    assert "runs 40.0 s" in text
    assert "after 50.0 s" in text
    assert "100 % of the expected 40.0 s (20.0 s to 70.0 s)" in text
    assert "volta-0/1 v100_sxm2  busy ▇ 75 %" in text
    assert "loss \\x1b[2J" in text
    late = text_of(Explanation(replace(job, start_s=1.0), predictions=(prediction(),)), model=model)
    assert "longer than 80 % of jobs like it" in late


def test_a_job_that_ended_meanwhile() -> None:
    text = text_of(
        Explanation(replace(running(1), state=JobState.FAILED, end_s=90.0, message="SIGKILL"), notes=("no x",))
    )
    assert "failed" in text
    assert "SIGKILL" in text
    assert "no x" in text


def test_a_decision_with_its_candidates_and_its_shadow() -> None:
    there = Placement.on("volta-0/0")
    candidates = tuple(Candidate(Placement.on(f"volta-0/{n}"), "v100_sxm2", 10.0 + n, -n) for n in range(12))
    made = decision(
        decision_id="d-1-7",
        placement=there,
        candidates=candidates,
        basis=DecisionBasis.LATE,
        basis_text="the policy was late",
        deciding_policy="hold_gang",
        shadow=ShadowDecision("sjf", "job-9", there, agrees=False),
    )
    text = "\n".join(plain(line) for line in decision_lines(made, 120))
    assert "d-1-7" in text
    assert "by hold_gang" in text
    assert "the policy was late" in text
    assert "→ volta-0/0" in text
    assert "and 4 more" in text
    assert "sjf would have started job-9 on volta-0/0" in text


@pytest.mark.parametrize(("width", "line_count"), [(60, 2), (80, 2), (120, 1)])
def test_what_a_prediction_rests_on_is_never_cut_off(width: int, line_count: int) -> None:
    predicted = RuntimePrediction("rtx_2080_ti", 25.6, 3.6, 182.0, 0.8, PredictionBasis.PRIOR, 0.0)
    lines = explanation_lines(Explanation(waiting(1), predictions=(predicted,)), [], NOW, None, width)
    texts = [plain(line) for line in lines]
    told = texts[texts.index("Predicted runtime") + 1 :]
    assert len(told) == line_count
    assert all(width_of(line) <= width for line in lines)
    assert "the prior alone: no similar job has ended" in told[-1]


@given(st.integers(30, 160), st.text(max_size=60), st.text(max_size=300))
def test_hostile_texts_stay_within_the_screen(width: int, name: str, message: str) -> None:
    job = waiting(1, spec=spec(name, name, application=name, labels={name: name}), message=message)
    told = explained(sentence=message, changes=(WaitingChange(WaitingChangeKind.CPU_CORES, 4, (), 1, message),))
    known = Explanation(job, decision(summary=message, basis_text=message), told, (), message, (message,))
    for line in explanation_lines(known, [], NOW, None, width)[1:]:
        assert width_of(line) <= max(width, 30)
        assert not set(plain(line)) & {"\x1b", "\n", "\r", "\u202e"}
