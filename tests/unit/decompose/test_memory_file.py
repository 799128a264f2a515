"""The memory file at start: what cannot be read is refused or put aside, and never written over."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import math
import zlib
from collections.abc import Iterator
from typing import Any, cast

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from adlro.errors import InvalidInput
from adlro.records.jobs import JobSpec, JobType
from adlro.services.decompose.learning import Learning
from adlro.services.decompose.memory_file import MemoryFile, kept_pair, run_of
from adlro.services.decompose.metrics import DecomposeMetrics
from adlro.services.decompose.outcomes.memory_snapshot import FORMAT, VERSION
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.outcomes.restart_costs import ObservedRestart, RestartCosts
from adlro.services.decompose.pairs.pair_fits import PairFits
from adlro.services.decompose.pairs.pair_memory import PairMemory
from adlro.services.decompose.pairs.shared_runs import SharedRun, SharingKind
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor
from adlro.services.decompose.stream_followers import START, entry_order
from adlro.services.decompose.variables.variables import VOCABULARY_VERSION, Variables
from adlro.services.decompose.variables.vocabulary import UNKNOWN

SPEC = JobSpec("a", "ann", JobType.SIMULATION, "tealeaf")


def file(path) -> Any:
    variables, speeds = Variables(), ModelSpeeds()
    memory = OutcomeMemory(variables, speeds)
    predictor = LearnedPredictor(memory, variables, speeds, lambda: (), refits_itself=False)
    learning = Learning(predictor, speeds, RestartCosts(), PairFits(PairMemory()))
    made = cast(
        Any,
        MemoryFile(path, memory, variables, learning, DecomposeMetrics(CollectorRegistry()), structlog.get_logger()),
    )
    made._predictor = predictor
    return made


async def saved(path) -> None:
    writer = file(path)
    for number in range(20):
        writer._predictor.learn(FinishedJob(f"job-{number}", SPEC, "v100_sxm2", 10.0, float(number)))
    await writer.save("5-0")


async def test_a_directory_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    (path / "precious").write_text("x")
    with pytest.raises(InvalidInput, match=r"data can't be read: Is a directory.*ADLRO_DECOMPOSE_MEMORY_PATH"):
        await file(path).load(None)
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


async def test_a_file_that_may_not_be_read_is_refused_and_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "memory"
    await saved(path)
    before = path.read_bytes()

    def forbidden(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("adlro.services.decompose.memory_file.load", forbidden)
    with pytest.raises(InvalidInput, match="Permission denied"):
        await file(path).load(None)
    assert [each.name for each in tmp_path.iterdir()] == ["memory"]
    assert path.read_bytes() == before


async def test_damaged_files_are_put_aside_each_under_a_name_of_its_own(tmp_path):
    path = tmp_path / "memory"
    for content in (b"first", b"second", b"third"):
        path.write_bytes(content)
        assert await file(path).load(None) == START
    found = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert found == {
        "memory.unreadable": b"first",
        "memory.unreadable.2": b"second",
        "memory.unreadable.3": b"third",
    }


async def test_a_damaged_file_that_cannot_be_put_aside_is_not_written_over(tmp_path, monkeypatch):
    path = tmp_path / "memory"
    path.write_bytes(b"damaged")

    def forbidden(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("adlro.services.decompose.memory_file.put_aside", forbidden)
    with pytest.raises(InvalidInput, match="can't be renamed: Permission denied"):
        await file(path).load(None)
    assert path.read_bytes() == b"damaged"


async def test_a_job_of_the_file_that_cannot_be_learned_is_left_out(tmp_path, monkeypatch):
    path = tmp_path / "memory"
    await saved(path)
    reader = file(path)
    learn = reader._predictor.learn

    def refusing(job):
        if job.job_id == "job-3":
            raise OverflowError("too much")
        return learn(job)

    monkeypatch.setattr(reader._predictor, "learn", refusing)
    assert await reader.load(None) == "5-0"
    assert len(reader._memory) == 19


# ---- Files that have the right checksum, and hold anything


def sealed(content: object, **header: object) -> bytes:
    """A file with this content under a header that fits it."""
    return sealed_text(json.dumps(content), **header)


def sealed_text(text: str, **header: object) -> bytes:
    body = zlib.compress(text.encode())
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    first = {"format": FORMAT, "version": VERSION, "vocabulary": VOCABULARY_VERSION, "cursor": "5-0"}
    return json.dumps({**first, "bytes": len(body), "blake2b": digest, **header}).encode() + b"\n" + body


def job(number: int = 0, **fields: object) -> dict[str, object]:
    spec = {"name": "a", "user": "ann", "job_type": 1, "application": "tealeaf", "labels": {"size": "8", "run": "x"},
            "expected_runtime": {"gpu_model": "v100_sxm2", "runtime_s": 9.0}}  # fmt: skip
    plain = {"id": f"job-{number}", "spec": spec, "gpu_model": "v100_sxm2", "gpu_id": "n/0", "cluster": "default",
             "runtime_s": 10.0, "end_s": float(number)}  # fmt: skip
    return {**plain, **fields}


def content() -> dict[str, Any]:
    vocabularies = {
        "gpu_model": {"": 0, "v100_sxm2": 1},
        "application": {"": 0, "tealeaf": 1},
        "user": {"": 0, "ann": 3},
        "label_columns": {"size": 0},
        "labels_left_out": {"run": 0},
    }
    restart = {"user": "ann", "application": "tealeaf", "restart_s": 40.0, "std_s": 1.0, "stated_s": 20.0}
    pair = {"gpu_model": "v100", "name": "tealeaf", "family": "tealeaf", "beside_name": "bert", "beside_family": "bert",
            "kept_share": 0.4, "std": 0.05, "size": None, "beside_size": None}  # fmt: skip
    return {
        "vocabularies": vocabularies,
        "jobs": [job(number) for number in range(3)],
        "restarts": [restart, {**restart, "stated_s": None}],
        "pairs": [pair, {**pair, "beside_name": "gnn/5", "beside_family": "gnn", "beside_size": 5.0}],
    }


def vocabularies(**changed: object) -> dict[str, Any]:
    return {**content(), "vocabularies": {**content()["vocabularies"], **changed}}


DEEP = "[" * 100_000
BAD_FILES = {
    "deep brackets in the header": DEEP.encode() + b"\n",
    "deep brackets": sealed_text(DEEP),
    "deep brackets in a field": sealed_text('{"jobs": [], "vocabularies": ' + '{"a":' * 100_000),
    "a list": sealed([]),
    "no jobs": sealed({"vocabularies": {}}),
    "jobs are a number": sealed({**content(), "jobs": 7}),
    "a job is a text": sealed({**content(), "jobs": ["job-1"]}),
    "vocabularies are a list": sealed({**content(), "vocabularies": ["user"]}),
    "a vocabulary of lists": sealed(vocabularies(user=[[], []])),
    "a vocabulary is a number": sealed(vocabularies(user=7)),
    "numbers are texts": sealed(vocabularies(user={"": 0, "ann": "1"})),
    "a number beyond arrays": sealed(vocabularies(user={"": 0, "ann": 2**31})),
    "columns are texts": sealed(vocabularies(label_columns={"size": "0"})),
    "columns are lists": sealed(vocabularies(label_columns={"size": []})),
    "left out are lists": sealed(vocabularies(labels_left_out=[[]])),
    "labels are a list": sealed({**content(), "jobs": [job(spec={**job()["spec"], "labels": [1]})]}),  # type: ignore[dict-item]
    "labels are numbers": sealed({**content(), "jobs": [job(spec={**job()["spec"], "labels": {"a": 8}})]}),  # type: ignore[dict-item]
    "a user is a list": sealed({**content(), "jobs": [job(spec={**job()["spec"], "user": []})]}),  # type: ignore[dict-item]
    "a priority is a text": sealed({**content(), "jobs": [job(spec={**job()["spec"], "priority": "high"})]}),  # type: ignore[dict-item]
    "a runtime is declared as a text": sealed(
        {**content(), "jobs": [job(spec={**job()["spec"], "expected_runtime": {"gpu_model": "x", "runtime_s": "9"}})]}  # type: ignore[dict-item]
    ),
    "no end, ever": sealed({**content(), "jobs": [job(end_s=math.inf)]}),
    "restarts are a number": sealed({**content(), "restarts": 7}),
    "a restart without end": sealed({**content(), "restarts": [{**content()["restarts"][0], "restart_s": math.inf}]}),
    "pairs are a text": sealed({**content(), "pairs": "all"}),
    "a size is a text": sealed({**content(), "pairs": [{**content()["pairs"][0], "size": "5"}]}),
    "a cursor that is no entry": sealed(content(), cursor="latest"),
    "a cursor that is a list": sealed(content(), cursor=["5-0"]),
    "a cursor of many digits": sealed(content(), cursor="9" * 5000),
    "a cursor beyond Redis": sealed(content(), cursor=f"{2**64}-0"),
    "a version that is a list": sealed(content(), version=[2]),
}


async def test_restarts_come_back_and_what_cannot_be_learned_of_them_is_left_out(tmp_path):
    path = tmp_path / "memory"
    writer = file(path)
    for restart_s in (40.0, 44.0):
        writer._learning.restarts.learn(ObservedRestart("ann", "tealeaf", restart_s, 1.0, 20.0))
    writer._learning.restarts.learn(ObservedRestart("bob", "tealeaf", 7.0, 1.0))
    writer._learning.learn(FinishedJob("job-1", SPEC, "v100_sxm2", 10.0, 1.0))  # a change, so that it is written
    await writer.save("5-0")
    reader = file(path)
    assert await reader.load(None) == "5-0"
    assert reader._learning.restarts.observations() == writer._learning.restarts.observations()
    for question in (("ann", "tealeaf", 20.0), ("bob", "tealeaf", None), ("zoe", "gnmt", 5.0)):
        assert reader._learning.restarts.predict(*question) == writer._learning.restarts.predict(*question)

    wrong = [{**each, "std_s": -1.0, "stated_s": 0.0} for each in content()["restarts"]]
    path.write_bytes(sealed({**content(), "restarts": [*wrong, *content()["restarts"]]}))
    reader = file(path)
    assert await reader.load(None) == "5-0"
    assert len(reader._learning.restarts.observations()) == 2
    assert len(reader._memory) == 3


async def test_pairs_come_back_and_what_cannot_be_learned_of_them_is_left_out(tmp_path):
    path = tmp_path / "memory"
    writer = file(path)
    resnet, bert = SharingKind.named("ResNet-18 (batch size 64)"), SharingKind.named("bert")
    for kept in (0.5, 0.8, 1.1):
        writer._learning.pairs.memory.learn(SharedRun("v100", resnet, bert, kept, 0.2))
        writer._learning.pairs.memory.learn(SharedRun("k80", bert, resnet, kept / 2, 0.1))
    writer._learning.learn(FinishedJob("job-1", SPEC, "v100_sxm2", 10.0, 1.0))  # a change, so that it is written
    await writer.save("5-0")
    reader = file(path)
    assert await reader.load(None) == "5-0"
    expected = writer._learning.pairs.memory
    assert [run_of(kept_pair(each)) for each in expected.runs()] == expected.runs()
    assert [each[:3] for each in map(dataclasses.astuple, reader._learning.pairs.memory.runs())] == [
        each[:3] for each in map(dataclasses.astuple, expected.runs())
    ]
    found = reader._learning.pairs.memory.fit().predict(expected.pairs())
    assert found.mean == pytest.approx(expected.fit().predict(expected.pairs()).mean)

    wrong = [{**each, "std": 0.0} for each in content()["pairs"]]
    path.write_bytes(sealed({**content(), "pairs": [*wrong, *content()["pairs"]]}))
    reader = file(path)
    assert await reader.load(None) == "5-0"
    assert len(reader._learning.pairs.memory) == 2


@pytest.mark.parametrize("version", [1, 2])
async def test_a_file_from_before_restarts_and_pairs_were_kept_is_read(tmp_path, version):
    path = tmp_path / "memory"
    older = content()
    del older["restarts"], older["pairs"]
    path.write_bytes(sealed(older, version=version))
    reader = file(path)
    assert await reader.load(None) == "5-0"
    assert (len(reader._memory), len(reader._learning.restarts), len(reader._learning.pairs.memory)) == (3, 0, 0)
    await goes_on(reader, path)


async def test_what_a_later_release_keeps_beside_it_is_no_obstacle(tmp_path):
    path = tmp_path / "memory"
    path.write_bytes(sealed({**content(), "later": [1, {"a": 2}]}))
    assert await file(path).load(None) == "5-0"


@pytest.mark.parametrize("name", BAD_FILES)
async def test_a_file_of_anything_is_put_aside_and_the_service_begins_anew(tmp_path, name):
    path = tmp_path / "memory"
    path.write_bytes(BAD_FILES[name])
    reader = file(path)
    assert await reader.load(None) == START
    assert (tmp_path / "memory.unreadable").read_bytes() == BAD_FILES[name]
    assert reader._metrics.unreadable_memory_files._value.get() == 1
    await goes_on(reader, path)


async def test_a_file_that_unpacks_to_far_more_than_a_memory_is_put_aside(tmp_path, monkeypatch):
    monkeypatch.setattr("adlro.services.decompose.outcomes.memory_snapshot.MOST_CONTENT_BYTES", 2**16)
    path = tmp_path / "memory"
    path.write_bytes(sealed_text(" " * 2**16 + json.dumps(content())))
    assert await file(path).load(None) == START
    assert (tmp_path / "memory.unreadable").exists()


async def goes_on(reader: Any, path: Any) -> None:
    """It learns, writes, and another process takes up what it wrote."""
    before = len(reader._memory)
    assert reader._predictor.learn(FinishedJob("new", SPEC, "radeon_vii", 20.0, 1e6))
    await reader.save("6-0")
    assert not list(path.parent.glob("*.tmp"))
    follower = file(path)
    assert await follower.load(None) == "6-0"
    assert len(follower._memory) == before + 1


async def test_a_good_file_is_taken_up(tmp_path):
    path = tmp_path / "memory"
    path.write_bytes(sealed(content()))
    reader = file(path)
    assert await reader.load(None) == "5-0"
    assert len(reader._memory) == 3
    assert reader._variables.user.number("ann") == 3
    await goes_on(reader, path)


@pytest.mark.parametrize("name", ["deep brackets in the header", "a cursor of many digits"])
async def test_what_came_in_its_place_meanwhile_is_put_aside_before_the_memory_is_written(tmp_path, name):
    path = tmp_path / "memory"
    reader = file(path)
    assert await reader.load(None) == START
    path.write_bytes(BAD_FILES[name])
    await goes_on(reader, path)
    assert (tmp_path / "memory.unreadable").read_bytes() == BAD_FILES[name]
    assert reader._metrics.unreadable_memory_files._value.get() == 1


async def test_a_file_by_which_learning_fails_is_put_aside_and_what_was_learned_of_it_forgotten(tmp_path, monkeypatch):
    path = tmp_path / "memory"
    path.write_bytes(sealed(content()))
    reader = file(path)
    learn = reader._predictor.learn

    def failing(each):
        if each.job_id == "job-2":
            raise IndexError("nobody thought of this")
        return learn(each)

    with monkeypatch.context() as patch:
        patch.setattr(reader._predictor, "learn", failing)
        assert await reader.load(None) == START
    assert (tmp_path / "memory.unreadable").exists()
    assert len(reader._memory) == 0
    assert reader._variables.user.number("ann") == UNKNOWN
    await goes_on(reader, path)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["1e400", "job-0", "default", "5-0", "nan"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a document."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from places(each, (*at, key))


PLACES = list(places(content()))


@pytest.mark.each_python
@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.sampled_from(PLACES), value=ANYTHING, gone=st.booleans())
def test_a_file_with_any_value_anywhere_is_taken_up_or_put_aside(tmp_path, at, value, gone):
    changed: Any = content()
    if at:
        inner = changed
        for key in at[:-1]:
            inner = inner[key]
        if gone:
            del inner[at[-1]]
        else:
            inner[at[-1]] = value
    else:
        changed = value
    path = tmp_path / "memory"
    asyncio.run(taken_up_or_put_aside(path, sealed(changed)))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(["format", "version", "vocabulary", "cursor", "bytes", "blake2b"]), value=ANYTHING)
def test_a_file_with_any_header_is_taken_up_or_put_aside(tmp_path, name, value):
    asyncio.run(taken_up_or_put_aside(tmp_path / "memory", sealed(content(), **{name: value})))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 400), some=st.binary(max_size=8), length=st.integers(0, 8))
def test_a_file_with_any_bytes_is_taken_up_or_put_aside(tmp_path, at, some, length):
    whole = sealed(content())
    asyncio.run(taken_up_or_put_aside(tmp_path / "memory", whole[:at] + some + whole[at + length :]))


async def taken_up_or_put_aside(path: Any, found: bytes) -> None:
    path.write_bytes(found)
    reader = file(path)
    cursor = await reader.load(None)
    aside = path.with_name("memory.unreadable")
    if aside.exists():
        assert (cursor, aside.read_bytes(), len(reader._memory)) == (START, found, 0)
        aside.unlink()
    else:
        assert entry_order(cursor) >= (0, 0)
    for number in range(20):  # so many that they are brought together
        assert reader._predictor.learn(FinishedJob(f"new-{number}", SPEC, "radeon_vii", 20.0, 2e6 + number))
    reader._predictor.refit().make()
    reader._predictor.predict([SPEC], ["radeon_vii"])
    await reader.save(f"{2**64 - 1}-0")
    assert await file(path).load(None) == f"{2**64 - 1}-0"
    path.unlink()
