"""What a job that shared a GPU says of its neighbour, and which jobs count as alike."""

from __future__ import annotations

import math

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
    run = observed_run("v100", ME, [TimeBeside(None, 40.0), TimeBeside(LM, 100.0)], 100.0, 0.0, lambda _: math.nan)
    assert run is not None
    assert (run.gpu_model, run.kind, run.beside, run.std) == ("v100", ME, LM, LEAST_STD)
    assert run.kept_share == pytest.approx(0.6)


def test_it_is_as_uncertain_as_the_runtime_alone_and_more_if_the_time_was_short():
    times = [TimeBeside(None, 70.0), TimeBeside(LM, 50.0)]
    run = observed_run("v100", ME, times, 100.0, 0.1, lambda _: math.nan)
    assert run is not None
    assert run.kept_share == pytest.approx(0.6)
    assert run.std == pytest.approx(0.1 * 100 / 50)


def test_of_several_neighbours_the_longest_is_learned_with_what_is_predicted_of_the_others():
    # 20 s at 0.5, twice 50 s at 0.4: 50 s of work.
    times = [TimeBeside(LM, 50.0), TimeBeside(GNN, 20.0), TimeBeside(LM, 50.0)]
    run = observed_run("v100", ME, times, 50.0, 0.0, {GNN: 0.5}.__getitem__)
    assert run is not None
    assert run.beside == LM
    assert run.kept_share == pytest.approx(0.4)


def test_a_kept_share_is_in_its_range_whatever_was_predicted():
    for alone_s, kept in ((500.0, 1.0), (0.1, 0.0)):
        run = observed_run("v100", ME, [TimeBeside(None, 1.0), TimeBeside(LM, 9.0)], alone_s, 0.2, lambda _: 1.0)
        assert run is not None
        assert run.kept_share == kept


def test_no_neighbour_or_hardly_any_says_nothing():
    assert observed_run("v100", ME, [TimeBeside(None, 10.0)], 10.0, 0.0, lambda _: 1.0) is None
    times = [TimeBeside(None, 98.0), TimeBeside(LM, 2.0)]
    assert observed_run("v100", ME, times, 100.0, 0.0, lambda _: 1.0) is None
