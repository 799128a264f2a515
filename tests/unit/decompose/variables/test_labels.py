"""Which labels count: numbers by how many jobs carry them, texts unless they are another for each job."""

from __future__ import annotations

import math
import random

import pytest

from adlro.records.jobs import JobSpec, JobType
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor
from adlro.services.decompose.variables.job_features import Category, FeatureExtractor, Real
from adlro.services.decompose.variables.labels import LABEL_LIMIT, RECENT_JOBS, LabelUse
from adlro.services.decompose.variables.variables import Variables


def spec(**labels: str) -> JobSpec:
    return JobSpec("a", "ann", JobType.SIMULATION, "tealeaf", labels=labels)


def test_a_text_that_is_another_for_each_job_is_left_out_and_one_that_comes_again_is_not():
    use, rng = LabelUse(), random.Random(1)
    for number in range(300):
        use.note({"run": f"run-{number}", "dataset": f"set-{rng.randrange(40)}"})
    assert use.left_out() == ["run"]


def test_a_text_that_comes_to_repeat_counts_again():
    use = LabelUse()
    for number in range(100):
        use.note({"stage": f"s{number}"})
    assert use.is_left_out("stage")
    for number in range(200):
        use.note({"stage": f"s{number % 4}"})
    assert not use.is_left_out("stage")


def test_few_jobs_say_nothing():
    use = LabelUse()
    for number in range(60):
        use.note({"run": f"run-{number}"})
    assert not use.left_out()


def test_invented_keys_do_not_keep_columns_from_those_in_use():
    use = LabelUse()
    assert use.note({f"invented-{number}": "1" for number in range(50)}) == []
    assert len(use.columns()) == LABEL_LIMIT
    assert use.column("batch_size") is None
    moved = [column for _ in range(RECENT_JOBS) for column in use.note({"batch_size": "8"})]
    assert moved == [use.column("batch_size")]
    assert use.key(moved[0]) == "batch_size"
    # Nor can they take it again while it is carried.
    for number in range(100):
        assert use.note({"batch_size": "8", "more": "1"}) == ([use.column("more")] if number == 15 else [])
    assert use.column("batch_size") == moved[0]


def test_a_column_that_went_to_another_key_holds_nothing_of_the_first():
    variables = Variables()
    memory = OutcomeMemory(variables, ModelSpeeds())
    predictor = LearnedPredictor(memory, variables, ModelSpeeds(), lambda: ())

    def learn(number: int, **labels: str) -> None:
        predictor.learn(FinishedJob(f"job-{number}", spec(**labels), "v100_sxm2", 10.0, float(number)))

    learn(0, **{f"k{number}": "4" for number in range(LABEL_LIMIT)})
    for number in range(1, 40):
        learn(number, batch_size="4")
    column = len(Real) + (variables.labels.column("batch_size") or 0)
    reals = predictor._window.view()[0].reals
    assert math.isnan(reals[0, column])
    assert reals[-1, column] == pytest.approx(math.log2(5))
    found = {each.job.job_id: each.similarity for each in memory.nearest(spec(batch_size="4"), 100)}
    assert found["job-39"] == 1.0
    assert found["job-0"] < 0.95
    # Whoever has the new label at the old one's value, and is like the old job otherwise, is not taken for its like.
    kept = dict.fromkeys(variables.labels.columns(), "4")
    learn(40, **kept)
    found = {each.job.job_id: each.similarity for each in memory.nearest(spec(**kept), 100)}
    assert found["job-40"] == 1.0
    assert found["job-0"] < 0.95
    assert len(found) == 41


def test_rows_are_made_of_what_counts():
    variables = Variables()
    rows = FeatureExtractor(variables)
    for number in range(64):
        job = spec(run=f"run-{number}", dataset="a", size="3")
        rows.note(job)
    first = rows.row(spec(run="x", dataset="a"), learn=True)[0][Category.LABELS]
    assert rows.row(spec(run="y", dataset="a"), learn=True)[0][Category.LABELS] == first
    assert rows.category_name(Category.LABELS, first) == "dataset=a"
    assert rows.real_name(len(Real)) == "label/size"


def test_jobs_with_a_name_each_are_predicted_as_well_as_without():
    medians, rows = [], []
    for labelled in (False, True):
        variables, speeds, rng = Variables(), ModelSpeeds(), random.Random(3)
        memory = OutcomeMemory(variables, speeds)
        predictor = LearnedPredictor(memory, variables, speeds, lambda: ())
        for number in range(400):
            labels = {"run": f"run-{number}"} if labelled else {}
            for user, work_s in (("ann", 40.0), ("bob", 5.0)):
                job = JobSpec("a", user, JobType.SIMULATION, "tealeaf", labels=labels)
                runtime_s = work_s * math.exp(rng.gauss(0, 0.3))
                predictor.learn(FinishedJob(f"{user}-{number}", job, "v100_sxm2", runtime_s, float(number)))
        asked = [
            JobSpec("a", user, JobType.SIMULATION, "tealeaf", labels={"run": "new"} if labelled else {})
            for user in ("ann", "bob")
        ]
        answer = predictor.predict(asked, ["v100_sxm2"])
        medians.append(answer.median_s[:, 0])
        rows.append(memory.row_count)
        assert (answer.novelty < 0.5).all()
        model = predictor._fit.outcomes.model
        assert model is not None
        assert len(model.cells) <= 66
    assert medians[1] == pytest.approx(medians[0], rel=0.05)
    assert rows[0] == 2
    assert rows[1] <= 66
