"""What is learned from programs that state neither a job type nor a runtime."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest

from adlro.hardware.speeds import speed
from adlro.records.jobs import JobSpec, JobType
from adlro.records.payloads import process_payload
from adlro.records.predictions import PredictionBasis
from adlro.records.specifications import completed, for_predictions
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor
from adlro.services.decompose.runtimes.plain_predictor import PlainPredictor
from adlro.services.decompose.variables.variables import Variables

GPU_MODELS = V100, TURING = "v100_sxm2", "rtx_2080_ti"
MEDIAN_S = {"matmul.py": 6.0, "train.py": 25.0, "sort.py": 1.5}


def program(script: str, job_type: JobType = JobType.UNSPECIFIED, user: str = "ann") -> JobSpec:
    spec = JobSpec(script, user, job_type, payload=process_payload(["python", f"/home/ann/{script}", "--size", "1"]))
    return for_predictions(completed(spec))


class Machine:
    """A predictor, and programs that run one at a time on pretended GPUs, all equally fast."""

    def __init__(self, seed: int, sigma: float, predictor: str = "learned") -> None:
        variables, speeds = Variables(), ModelSpeeds()
        self.memory = OutcomeMemory(variables, speeds)
        self.predictor = (
            LearnedPredictor(self.memory, variables, speeds, lambda: GPU_MODELS)
            if predictor == "learned"
            else PlainPredictor(self.memory, speeds, lambda: GPU_MODELS)
        )
        self._draw = random.Random(seed)
        self._sigma = sigma
        self._now_s = 0.0
        self.count = 0

    def runs(self, count: int, gpu_models: tuple[str, ...]) -> list[float]:
        """The relative errors of the predictions that so many runs have beforehand."""
        return [self._run(self._draw.choice(list(MEDIAN_S)), self._draw.choice(gpu_models)) for _ in range(count)]

    def _run(self, script: str, gpu_model: str) -> float:
        runtime_s = MEDIAN_S[script] * math.exp(self._draw.gauss(0.0, self._sigma))
        predicted_s = self.predictor.predict([program(script)], [gpu_model]).median_s[0, 0]
        self.count += 1
        self._now_s += runtime_s
        gpu_id = f"{gpu_model}/{self.count % 2}"
        finished = FinishedJob(f"job-{self.count}", program(script), gpu_model, runtime_s, self._now_s, gpu_id)
        assert self.predictor.learn(finished)
        return float(abs(predicted_s / runtime_s - 1.0))

    def slowdown(self, script: str) -> float:
        """The predicted runtime on Turing relative to the V100."""
        of_models = self.predictor.predict([program(script)], [V100, TURING]).median_s[0]
        return float(of_models[1] / of_models[0])


@pytest.mark.parametrize("sigma", [0.05, 0.10])
@pytest.mark.parametrize("seed", range(4))
def test_after_thirty_runs_the_median_error_is_below_a_quarter_and_made_up_speeds_are_unlearned(seed, sigma):
    machine = Machine(seed, sigma)
    first = machine.runs(30, (V100,))
    later = machine.runs(30, (V100,))
    assert median(later) < 0.25
    assert median(later) < 1.5 * sigma, "noise alone gives 0.67 sigma"
    assert max(first[:6]) > 0.25, "nothing is known of them beforehand"
    for script in MEDIAN_S:  # from the table: no run on Turing so far
        assert machine.slowdown(script) > 1.4
    machine.runs(30, (V100, TURING))
    for script in MEDIAN_S:
        assert machine.slowdown(script) == pytest.approx(1.0, abs=0.15)
    # Another application's speeds are the table's own.
    answer = machine.predictor.predict([JobSpec("a", "zoe", JobType.SIMULATION, "tealeaf")], [V100, TURING])
    listed = speed("tealeaf", JobType.SIMULATION, V100) / speed("tealeaf", JobType.SIMULATION, TURING)
    assert abs(math.log(answer.median_s[0, 1] / answer.median_s[0, 0])) <= abs(math.log(listed)) + 0.2


def test_a_program_has_evidence_and_a_basis_of_its_own():
    machine = Machine(0, 0.05)
    machine.runs(30, (V100,))
    asked = [program("train.py"), program("train.py", user="zoe"), program("new.py")]
    answer = machine.predictor.predict(asked, [V100])
    assert answer.basis == [
        PredictionBasis.USER_APPLICATION,
        PredictionBasis.APPLICATION,
        PredictionBasis.JOB_TYPE,
    ]
    assert answer.novelty[0] < answer.novelty[2]
    [[nearest]] = machine.predictor.evidence([program("train.py")], [V100], 3)
    assert {each.job.spec.application for each in nearest} == {"python:train.py"}
    assert nearest[0].similarity == pytest.approx(1.0)


def test_the_plain_predictor_learns_from_programs_too():
    machine = Machine(0, 0.05, "plain")
    machine.runs(30, (V100,))
    assert median(machine.runs(30, (V100,))) < 0.25


def test_a_stated_type_is_another_job_than_an_unspecified_one():
    machine = Machine(0, 0.05)
    machine.runs(12, (V100,))
    jobs = [program("train.py"), program("train.py", JobType.MACHINE_LEARNING)]
    unspecified, stated = (machine.predictor.recall(job, 1)[0].similarity for job in jobs)
    assert unspecified == pytest.approx(1.0, abs=0.3)
    assert stated < unspecified


def test_the_variables_of_a_program_lack_the_job_type():
    variables = Variables()
    names = [each.name for each in variables.of_job(program("train.py"))]
    assert names == ["priority_class", "application", "user", "size_class"]
    stated = [each.name for each in variables.of_job(program("train.py", JobType.SIMULATION))]
    assert stated == ["priority_class", "job_type", "application", "user", "size_class"]
