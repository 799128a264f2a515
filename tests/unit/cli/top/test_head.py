"""The head: who truly decides, how full, what waits, what needs somebody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.cli.top.feed_states import Feed
from adlro.cli.top.head import Head, decider, head_lines, head_of
from adlro.cli.top.lines import cut, fitted, flow, plain, width_of, wrapped
from adlro.cli.top.model import TopModel
from adlro.records.capacity import ClusterCapacity, GpuModelCapacity
from adlro.records.decisions import DecisionBasis
from adlro.records.identity import Identity, Role
from adlro.records.jobs import PendingReason
from adlro.records.matrices import GpuDrift
from adlro.records.status import EventLag, GpuModelFigures, ShadowStatus
from tests.unit.cli.top.records import description, gpu_state, running, snapshot, status, waiting


def model_of(*jobs: object, **fields: object) -> TopModel:
    model = TopModel()
    for event in snapshot(*jobs, revision=50):  # type: ignore[arg-type]
        model.take_job(event)
    model.take_description(description(), 1.0)
    model.take_status(status(**fields), 1.0)
    model.take_gpus(gpu_state([0.8, 0.6, 0.0, 0.0, 0.0, 0.0]))
    for feed in Feed:
        model.heard(feed, 1.0)
    return model


def text_of(model: TopModel, width: int = 200, now_s: float = 2.0) -> str:
    head = head_of(model, now_s, 0.0, 5.0)
    return "\n".join(plain(line) for line in head_lines(head, width))


def test_a_healthy_cluster() -> None:
    policy_job = waiting(3, pending_reason=PendingReason.POLICY)
    text = text_of(
        model_of(
            running(1), waiting(2), policy_job, waiting(4), shadow=ShadowStatus("sjf", 87, 13), policy_version="77ab"
        )
    )
    assert "live" in text
    assert "decided by dqn 77ab" in text
    assert "shadow sjf agrees in 87 % of 100" in text
    assert "1/6 GPUs" in text
    assert "23 %" in text  # of all GPUs
    assert "waiting 3: 2 resources, 1 policy" in text
    assert "!" not in text


@pytest.mark.parametrize(
    ("deciding", "basis", "told"),
    [
        ("dqn", DecisionBasis.POLICY, ("dqn", "")),
        ("", None, ("dqn", "")),
        ("hold_gang", DecisionBasis.OUT_OF_RANGE, ("hold_gang", "out of the range that it was trained for")),
        ("dqn", DecisionBasis.OVERDUE, ("the limit on waits", "a job is overdue")),
    ],
)
def test_who_truly_decides(deciding: str, basis: DecisionBasis | None, told: tuple[str, str]) -> None:
    assert decider("dqn", deciding, basis) == told


def test_what_needs_somebody_is_said_in_words() -> None:
    model = model_of(
        running(1),
        event_lag=EventLag(412, 3.0, 512),
        problem="Redis does not answer",
        policy_problem="dqn has no checkpoint",
        drained_node_ids=("turing-0",),
        drain_reasons={"turing-0": "fan"},
        deciding_policy="hold_gang",
        deciding_basis=DecisionBasis.MISSING,
    )
    model.take_description(description(lost_gpu_ids=("volta-0/3",)), 1.0)
    found = head_of(model, 2.0, 0.0, 5.0).problems
    assert found == (
        "Redis does not answer",
        "dqn has no checkpoint",
        'node turing-0 is drained: "fan"',
        "the orchestrator is 412 events behind the cluster, the oldest of 3.0 s ago",
        "1 GPU is lost: volta-0/3",
    )
    text = text_of(model)
    assert "decided by hold_gang for dqn: its checkpoint is missing" in text
    assert "(and 2 more)" in text
    assert "events behind 412 for 3.0 s" in text


def test_events_that_are_on_their_way_are_no_problem() -> None:
    model = model_of(running(1), event_lag=EventLag(40, 0.3, 512))
    assert head_of(model, 2.0, 0.0, 5.0).problems == ()
    assert "events behind 40 for 0.3 s" in text_of(model)
    assert "events behind" not in text_of(model_of(running(1), event_lag=EventLag(0, 0.0, 512)))


def test_until_jobs_and_cluster_are_known_the_orchestrators_figures_stand_there() -> None:
    model = TopModel()
    figures = (GpuModelFigures("v100_sxm2", 4, 4, 3, 0, 0, 3), GpuModelFigures("rtx_2080_ti", 2, 1, 0, 1, 0, 0))
    waits = {PendingReason.RESOURCES: 2, PendingReason.NO_FITTING_GPU: 1}
    model.take_status(status(queue_length=3, running_count=3, waiting_by_reason=waits, gpu_models=figures), 1.0)
    text = text_of(model)
    assert "3/6 GPUs" in text
    assert "running 3   waiting 3: 2 resources, 1 no fitting gpu" in text
    model.take_status(status(queue_length=3, running_count=3), 1.0)  # of an earlier release
    assert "waiting" not in text_of(model)
    assert "GPUs" not in text_of(model)


def test_slow_gpus_are_told_beside_the_number_that_chance_gives() -> None:
    model = model_of(running(1))
    model.take_gpus(gpu_state([0.0] * 6, {"volta-0/1": GpuDrift(9.0, True, 0.7, 30)}))
    (problem,) = head_of(model, 2.0, 0.0, 5.0).problems
    assert problem == "1 GPU is slower than the model, 0 would be by chance: volta-0/1 (70 %)"


def test_nothing_is_zero_before_it_is_known() -> None:
    text = text_of(TopModel())
    assert "connecting" in text
    assert "0" not in text
    assert "running" not in text


def test_a_service_that_is_away_is_a_problem_with_the_age_of_its_data() -> None:
    model = model_of(running(1))
    model.failed(Feed.DECIDER, "no service answers at 127.0.0.1:7703 (orchestrator)", 3.0)
    text = text_of(model, now_s=9.0)
    assert "decider away 8.0 s" in text
    assert "! decider: no service answers at 127.0.0.1:7703 (orchestrator); shown is what was known 8.0 s ago" in text
    assert "jobs stale" in text


def test_a_submitter_sees_why_other_things_are_missing() -> None:
    model = TopModel()
    for event in snapshot(running(1), waiting(2), revision=3):
        model.take_job(event)
    model.heard(Feed.JOBS, 1.0)
    for feed in (Feed.DECIDER, Feed.CLUSTER, Feed.GPUS):
        model.failed(feed, "ada is submitter; GetStatus needs the role operator or reader", 1.0, refused=True)
    text = text_of(model)
    assert "your own jobs only: ada is submitter; GetStatus needs the role operator or reader" in text
    assert "your jobs: running 1   waiting 1" in text
    assert "GPUs" not in text
    assert "!" not in text
    free = (GpuModelCapacity("v100_sxm2", 4, 3, 2, 16, 65536), GpuModelCapacity("rtx_2080_ti", 2, 2, 0, 0, 0))
    model.take_capacity(ClusterCapacity("lab", free), Identity("ada", (Role.SUBMITTER,), tokens_needed=True))
    text = text_of(model)
    assert "your own jobs only: ada has the role submitter" in text
    assert "free GPUs: v100_sxm2 2/3 (nodes with up to 16 cores, 64.0 GiB)   rtx_2080_ti 0/2" in text


@given(st.integers(20, 200), st.text(max_size=60), st.text(max_size=200))
def test_no_line_is_wider_than_the_screen(width: int, name: str, problem: str) -> None:
    head = Head(cluster=name, policy=name, deciding="x", basis=problem, problems=(problem, name))
    for line in head_lines(head, width):
        assert width_of(line) <= width
        assert not set(plain(line)) & {"\x1b", "\n", "\r"}


# ---- lines


@given(st.text(max_size=60), st.integers(0, 40), st.booleans())
def test_fitted_text_has_its_width(text: str, width: int, right: bool) -> None:
    assert width_of([(fitted(text, width, right=right), "")]) == width


@given(st.text(alphabet="ab \n語\x1b[", max_size=80), st.integers(2, 30))
def test_wrapped_text_keeps_its_characters(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert all(width_of(line) <= width for line in lines)
    kept = "".join(plain(line) for line in lines).replace(" ", "")
    assert kept == text.replace("\x1b", "\\x1b").replace("\n", "").replace(" ", "")


def test_cut_and_flow() -> None:
    assert plain(cut([("abc", ""), ("def", "dim")], 5)) == "abcd…"
    assert plain(cut([("abc", "")], 3)) == "abc"
    lines = flow([[("aaaa", "")], [], [("bbbb", "")], [("cccc", "")]], 12)
    assert [plain(line) for line in lines] == ["aaaa   bbbb", "cccc"]
