"""What holds for every policy: batches, padding, fitting pairs, ties, and that nothing waits for ever."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.dqn import Dqn
from adlro.errors import Unsupported
from adlro.sim.batch import simulate
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import Observation
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.dense import dense, fits_now
from tests.policies import made
from tests.unit.decide.decision_points import Waiting, decision, drawn, merged, padded

TRIALS = 25

RANDOM_SCORES = [[0.35902201056531413, 0.11405632554231648], [0.5878890208406821, 0.11430321908012164]]


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return made(request.param)


def points(*, hold_allowed: bool = True) -> Iterator[Observation]:
    rng = np.random.default_rng(11)
    for _ in range(TRIALS):
        yield drawn(rng, int(rng.integers(0, 12)), hold_allowed=hold_allowed)


def test_a_batch_is_its_members(policy: Policy) -> None:
    rng = np.random.default_rng(12)
    members = [drawn(rng, 9, hold_allowed=bool(rng.integers(2))) for _ in range(TRIALS)]
    alone = np.concatenate([policy.act(each) for each in members])
    np.testing.assert_array_equal(policy.act(merged(members)), alone)
    assert (alone >= 0).any()


def test_padding_changes_nothing(policy: Policy) -> None:
    rng = np.random.default_rng(13)
    for point in points():
        jobs = point.job_waiting.shape[1]
        if not jobs:
            continue
        places = np.sort(rng.integers(0, jobs + 1, 4))
        job, gpu = policy.act(point)[0]
        expected = (job + int((places <= job).sum()), gpu) if job >= 0 else (-1, -1)
        assert tuple(policy.act(padded(point, list(places)))[0]) == expected


def test_only_pairs_that_fit_are_chosen_and_each_has_a_score(policy: Policy) -> None:
    for point in points():
        judgement = policy.judge(point)
        job, gpu = policy.choose(point, judgement)[0]
        assert judgement.scores.shape == point.table.job.shape
        assert not np.isnan(judgement.scores).any()
        if job >= 0:
            assert fits_now(point)[0, job, gpu]
            assert np.isfinite(judgement.scores_of_gpus(point, job)[gpu])


def test_where_no_hold_is_allowed_something_that_fits_starts(policy: Policy) -> None:
    started = 0
    for point in points(hold_allowed=False):
        job, _ = policy.act(point)[0]
        assert (job >= 0) == fits_now(point).any()
        started += job >= 0
    assert started > TRIALS / 2


def test_the_observation_is_left_as_it_was(policy: Policy) -> None:
    for point in points():
        before = copy.deepcopy(point)
        policy.act(point)
        for name in Observation.__slots__:
            np.testing.assert_equal(getattr(point, name), getattr(before, name))


def test_of_equal_jobs_the_earlier_and_of_equal_gpus_the_lower(policy: Policy) -> None:
    if policy.name == "random":
        pytest.skip("its ties are broken by chance")
    if isinstance(policy, Dqn):
        pytest.skip("its network is told which of them the base would take, and ties nothing; test_dqn.py has ties")
    jobs = [Waiting((5.0, 5.0, 5.0))] * 3
    assert tuple(policy.act(decision(jobs, [4.0, 0, 0], model=[0, 0, 0], node=[0, 0, 0]))[0]) == (0, 1)


def test_a_head_that_waits_for_a_lost_gpu_does_not_stop_the_others(policy: Policy) -> None:
    # Nothing runs or will come; GPU 0, the only one that can hold job 0, is lost.
    jobs = [Waiting((5.0, np.inf, np.inf)), Waiting((6.0, 9.0, 7.0))]
    job, gpu = policy.act(decision(jobs, [np.inf, 0, 0], hold_allowed=False))[0]
    assert job == 1
    assert gpu in (1, 2)


def test_random_is_uniform_over_pairs_and_the_same_everywhere() -> None:
    policy = POLICIES["random"]()
    policy.wait_ratio = np.inf  # the jobs have waited for hours
    jobs = [Waiting((5.0, 5.0)), Waiting((5.0, np.inf))]
    times = np.random.default_rng(14).uniform(0, 1e4, 3000)
    picks = policy.act(merged([decision(jobs, [0, 0], time_s=time) for time in times]))
    pairs, counts = np.unique(picks, axis=0, return_counts=True)
    assert pairs.tolist() == [[0, 0], [0, 1], [1, 0]]
    # 1000 expected of each; 26 is one standard deviation.
    assert (np.abs(counts - 1000) < 130).all()
    # Written down: whoever changes the hash changes what `random` did in every earlier result.
    point = decision([Waiting((5.0, 5.0))] * 2, [0, 0], time_s=12.5)
    assert dense(point, policy.scores(point))[0].tolist() == RANDOM_SCORES


def test_the_registry_and_the_other_policies_need_no_scipy() -> None:
    code = (
        "import sys; sys.modules['scipy'] = None\n"
        "from adlro.decide.policies import POLICIES\n"
        "print(len([policy() for policy in POLICIES.values()]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(out.stdout) == len(POLICIES)


def test_hungarian_without_scipy_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(Unsupported, match=r"pip install '\.\[evaluate\]'"):
        POLICIES["hungarian"]().act(decision([Waiting((1.0,))], [0]))


@pytest.mark.parametrize("name", POLICIES)
def test_each_says_what_it_does_and_what_its_score_is(name: str) -> None:
    policy = POLICIES[name]
    assert policy.name == name
    assert "score: " in policy.description
    assert "\n" not in policy.description


def test_the_page_of_policies_lists_them_all() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "policies.md").read_text(encoding="utf-8")
    section = page.partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(POLICIES)


def test_a_list_goes_the_same_way_wherever_the_clock_begins(policy: Policy) -> None:
    scenario = load_scenario("paper")
    jobs = draw_jobs(scenario, load=1.1, count=64, rng=np.random.default_rng(12))
    began_s = (0.0, 620.0, 6618.0, 1_802_403.0)
    lists = [[replace(job, submit_s=round(job.submit_s + begin_s, 6)) for job in jobs] for begin_s in began_s]
    outcome = simulate(scenario.cluster, pack_jobs(lists, scenario.cluster), policy.act)
    ends_s = outcome.end_s - np.array(began_s)[:, None]
    np.testing.assert_allclose(ends_s[1:], ends_s[:1].repeat(3, axis=0), rtol=0, atol=1e-6)
    assert (outcome.gpu == outcome.gpu[0]).all()
