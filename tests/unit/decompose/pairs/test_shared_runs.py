"""What a job that shared a GPU says of its neighbour, and which jobs count as alike."""

from __future__ import annotations

import math
import random

import pytest

from adlro.records.jobs import JobSpec, JobType
from adlro.services.decompose.pairs.shared_runs import LEAST_STD, SharingKind, TimeBeside, observed_run

ME, LM, GNN = SharingKind.named("me"), SharingKind.named("LM (batch size 20)"), SharingKind.named("gnn")


def test_the_size_in_a_name_is_a_size_and_the_rest_a_family():
    assert SharingKind.named("ResNet-18 (batch size 64)") == ("ResNet-18 (batch size 64)", "ResNet-18", 6.0)
    assert LM.family == "LM"
    for name in ("resnet50_fp16", "f (x)", "(batch size 3)", ""):
        kind = SharingKind.named(name)
        assert (kind.name, kind.family) == (name, name)
        assert math.isnan(kind.size)


def test_a_label_is_the_size_of_an_application_without_one():
    spec = JobSpec("a", "ann", JobType.MACHINE_LEARNING, "resnet", labels={"batch_size": "32", "lr": "0.1"})
    assert SharingKind.of(spec) == ("resnet/5", "resnet", 5.0)
    assert SharingKind.named("LM (batch size 20)", "32") == LM
    assert math.isnan(SharingKind.named("resnet", "large").size)
    assert math.isnan(SharingKind.named("resnet", "-1").size)


def test_a_job_that_ran_beside_one_other():
    # 100 s of work: 40 s alone, then 100 s at 0.6.
    run = observed_run("v100", ME, [TimeBeside(None, 40.0), TimeBeside(LM, 100.0)], 100.0, 0.0, lambda _: 0.5)
    assert run is not None
    assert (run.gpu_model, run.kind, run.beside, run.std) == ("v100", ME, LM, LEAST_STD)
    assert run.kept_share == pytest.approx(0.6)


def test_it_is_as_uncertain_as_the_runtime_alone_and_more_if_the_time_was_short():
    times = [TimeBeside(None, 70.0), TimeBeside(LM, 50.0)]
    run = observed_run("v100", ME, times, 100.0, 0.1, lambda _: 0.6)
    assert run is not None
    assert run.kept_share == pytest.approx(0.6, abs=0.02)
    assert run.std == pytest.approx(0.1 * (70 + 0.6 * 50) / 50)
    twice = [TimeBeside(each.beside, 2 * each.time_s) for each in times]
    longer = observed_run("v100", ME, twice, 100.0, 0.1, lambda _: 0.6)
    assert longer is not None
    assert longer.std == run.std  # or jobs that seem to keep more would count for less


def test_of_several_neighbours_the_longest_is_learned_with_what_is_predicted_of_the_others():
    # 20 s at 0.5, twice 50 s at 0.4: 50 s of work.
    times = [TimeBeside(LM, 50.0), TimeBeside(GNN, 20.0), TimeBeside(LM, 50.0)]
    run = observed_run("v100", ME, times, 50.0, 0.0, {GNN: 0.5, LM: 0.7}.__getitem__)
    assert run is not None
    assert run.beside == LM
    assert run.kept_share == pytest.approx(0.4)


@pytest.mark.parametrize("true", [0.3, 0.95])
def test_the_mean_over_many_uncertain_jobs_is_right(true):
    """Shares limited to 0..1 would have a mean below the true one near 1."""
    rng = random.Random(2)
    found = []
    for _ in range(4000):
        work_s, shared = 100.0 * math.exp(rng.gauss(0, 0.3)), rng.choice((0.7, 1.0))
        times = [TimeBeside(None, work_s * (1 - shared)), TimeBeside(LM, work_s * shared / true)]
        run = observed_run("v100", ME, times, 100.0, 0.3, lambda _: 0.6)
        assert run is not None
        found.append((run.kept_share, run.std**-2))
    mean = math.fsum(kept * weight for kept, weight in found) / math.fsum(weight for _, weight in found)
    assert mean == pytest.approx(true, abs=0.02)


def test_a_job_whose_runtime_is_too_uncertain_says_nothing():
    assert observed_run("v100", ME, [TimeBeside(None, 91.0), TimeBeside(LM, 9.0)], 100.0, 0.2, lambda _: 1.0) is None
    assert observed_run("v100", ME, [TimeBeside(LM, 100.0)], 100.0, 0.6, lambda _: 1.0) is None


def test_no_neighbour_or_hardly_any_says_nothing():
    assert observed_run("v100", ME, [TimeBeside(None, 10.0)], 10.0, 0.0, lambda _: 1.0) is None
    times = [TimeBeside(None, 98.0), TimeBeside(LM, 2.0)]
    assert observed_run("v100", ME, times, 100.0, 0.0, lambda _: 1.0) is None
