"""Policies of one's own: where they come from, what of them is refused, and what of their answers is let through."""

from __future__ import annotations

import importlib.metadata
import pickle
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adlro.decide import own_source
from adlro.decide.catalog import catalog, of_files, of_package
from adlro.decide.own_policy import Own
from adlro.decide.policies import POLICIES
from adlro.errors import InvalidInput, Unsupported
from adlro.records.status import BUILT_IN
from tests.unit.decide.decision_points import Waiting, decision, drawn

POINT = decision([Waiting((5, 3)), Waiting((2, 9))], [0, 0])
HEAD = """
import numpy as np
from adlro.decide.policies import Policy
from adlro.decide.policies.base import Judgement
"""
LAST = """
class Last(Policy):
    '''The job that came last.'''

    name = "last"

    def preferences(self, observation):
        return observation.table.job.astype(np.float64)
"""


def put(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(HEAD + textwrap.dedent(text))
    return str(folder / name)


def made(path: str, of: str = "Last") -> Own:
    (kind,) = of_files([f"{path}:{of}"]).values()
    return kind()


def test_a_policy_of_a_file_decides_as_it_says(tmp_path: Path) -> None:
    policy = made(put(tmp_path, LAST))
    assert policy.act(POINT)[0].tolist() == [1, 0]
    assert (policy.name, policy.description, policy.guarded) == ("last", "The job that came last.", True)
    assert policy.source.text == f"{tmp_path}/mine.py:Last"


def test_its_file_is_python_as_any_other(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        LAST
        + """
import dataclasses, pathlib, sys

@dataclasses.dataclass
class Settings:
    factor: float = 1.0

assert Settings.__annotations__ == {"factor": float}  # no import of ADLRO's own reaches it
assert pathlib.Path(__file__).name == "mine.py"
assert sys.modules[__name__].__dict__ is globals()
""",
    )
    assert made(path).name == "last"


def test_the_limit_on_waits_holds_for_it(tmp_path: Path) -> None:
    point = decision([Waiting((5, 3), submit_s=0.0), Waiting((2, 9), submit_s=9999.0)], [0, 0], time_s=10_000.0)
    policy = made(put(tmp_path, LAST))
    assert policy.act(point)[0].tolist() == [0, 0]
    policy.wait_ratio = np.inf
    assert policy.act(point)[0].tolist() == [1, 0]


def test_it_cannot_change_what_others_see(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        """
        class Writes(Policy):
            name = "writes"

            def preferences(self, observation):
                observation.table.duration_s[:] = -1.0
                observation.gpu_idle[:] = False
                return -observation.table.duration_s
        """,
    )
    point = drawn(np.random.default_rng(3), 6)
    before = point.copy()
    made(path, "Writes").act(point)
    np.testing.assert_array_equal(point.table.duration_s, before.table.duration_s)
    np.testing.assert_array_equal(point.gpu_idle, before.gpu_idle)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("np.zeros(1)", r"shape \(4,\).* not float64 of shape \(1,\)"),
        ("[1.0] * 4", "not list"),
        ("np.zeros(4, dtype=np.int64)", "not int64"),
        ("None", "not NoneType"),
        ("np.full(4, np.nan)", "no number"),
        ("np.full(4, np.inf)", "no number"),
    ],
)
def test_nonsense_is_named(tmp_path: Path, answer: str, says: str) -> None:
    path = put(
        tmp_path,
        f"""
        class Nonsense(Policy):
            name = "nonsense"

            def preferences(self, observation):
                return {answer}
        """,
    )
    policy = made(path, "Nonsense")
    with pytest.raises(InvalidInput, match=says):
        policy.act(POINT)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("1", "must return a Judgement, not int"),
        ("Judgement(np.zeros(4), gpu=np.array([1, 1, 1, 1]))", "gpu 1 is not of the group of row 0"),
        ("Judgement(np.zeros(4), gpu=[0, 1, 0, 1])", "gpu must be None or an array of int64"),
        ("Judgement(np.zeros(4), reserve=np.array([7]))", "reserve names place 7"),
        ("Judgement(np.zeros(4), basis={0: 'mine'})", "DecisionBasis"),
        ("Judgement(np.zeros(4), notes={3: 'x'})", "notes must map"),
        ("Judgement(np.zeros(4), values=np.zeros(3))", "values must be None or an array of float64"),
    ],
)
def test_nonsense_in_a_judgement_is_named(tmp_path: Path, answer: str, says: str) -> None:
    path = put(
        tmp_path,
        f"""
        class Nonsense(Policy):
            name = "nonsense"

            def weigh(self, observation):
                return {answer}
        """,
    )
    policy = made(path, "Nonsense")
    with pytest.raises(InvalidInput, match=says):
        policy.act(POINT)


def test_an_error_in_a_decision_names_the_line(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        """
        class Raises(Policy):
            name = "raises"

            def preferences(self, observation):
                return 1 / 0
        """,
    )
    policy = made(path, "Raises")
    with pytest.raises(InvalidInput, match=r"mine\.py, line 10: raises raised ZeroDivisionError"):
        policy.act(POINT)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_module\n", r"mine\.py, line 5: ModuleNotFoundError: .*; install it for the Python that runs"),
        ("\nx = (\n", r"mine\.py, line \d+: SyntaxError"),
        ("1 / 0\n", r"mine\.py, line 5: ZeroDivisionError.*; mend the file"),
        ("raise SystemExit(3)\n", r"mine\.py, line 5: SystemExit: 3"),
        ("class Other(Policy):\n    pass\n", "has no class Last; its policies are Other"),
        ("x = 1\n", "has no class Last; no subclass of Policy is defined there"),
        ("Last = 3\n", "is no policy; make it a subclass"),
        ("class Last:\n    pass\n", "is no policy; make it a subclass"),
        ("class Last(Policy):\n    pass\n", "give the class a name of its own"),
        ("class Last(Policy):\n    name = 'No Name'\n", "small letters"),
        ("class Last(Policy):\n    name = 'last'\n", "it decides nothing; give it a method preferences"),
        ("from adlro.decide.policies.sjf import Sjf\nclass Last(Sjf):\n    pass\n", "a name of its own"),
        ("from adlro.decide.policies.sjf import Sjf\nclass Last(Sjf):\n    name = 'sjf'\n", "'sjf' is taken"),
        ("from adlro.decide.policies.sjf import Sjf\nclass Last(Sjf):\n    name = 'all'\n", "'all' is taken"),
        (LAST + "    def judge(self, observation):\n        return 1\n", "replaces judge, with which ADLRO keeps"),
        (LAST + "    def act(self, observation):\n        return 1\n", "replaces act, with which ADLRO keeps"),
        (
            LAST + "    def __init__(self):\n        raise OSError('no disk')\n",
            "line 14: it can't be made OSError: no disk",
        ),
        (LAST + "    wait_ratio = -1\n", "wait_ratio must be a number from 0 on"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_way_out(tmp_path: Path, text: str, says: str) -> None:
    path = str(tmp_path / "mine.py")
    Path(path).write_text(HEAD[1:] + "\n" + text if not text.startswith("\nx") else HEAD + text)
    with pytest.raises(InvalidInput, match=says) as refused:
        of_files([f"{path}:Last"])
    assert refused.value.field == "policy_file"


@pytest.mark.parametrize("text", ["mine.py", "mine.py:", ":Last", "mine.py:a b", ""])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be PATH:CLASS, such as"):
        of_files([text])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere\.py: there is no such file"):
        of_files([f"{tmp_path}/nowhere.py:Last"])


def test_two_files_must_not_have_one_name(tmp_path: Path) -> None:
    first, second = put(tmp_path, LAST), put(tmp_path, LAST, "other.py")
    with pytest.raises(InvalidInput, match="'last' is taken"):
        of_files([f"{first}:Last", f"{second}:Last"])


def test_it_goes_to_another_process_and_is_refused_there_if_its_code_has_changed(tmp_path: Path) -> None:
    path = put(tmp_path, LAST)
    policy = made(path)
    policy.wait_ratio = 7.0
    sent = pickle.dumps(policy)
    again = pickle.loads(sent)
    assert (again.name, again.wait_ratio, again.version) == ("last", 7.0, policy.version)
    put(tmp_path, LAST + "# changed\n")
    with pytest.raises(InvalidInput, match="has changed meanwhile"):
        pickle.loads(sent)


def test_its_version_is_that_of_its_file_and_of_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_own_policy.py").write_text("FACTOR = 1\n")
    path = put(tmp_path, "import beside_own_policy\n" + LAST)
    before = made(path).version
    assert len(before) == 12
    (tmp_path / "beside_own_policy.py").write_text("FACTOR = 2\n")
    assert own_source.digest_of(own_source.OwnSource(path, "Last")) != before


def test_a_policy_tunes_itself_for_a_load_as_others_do(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        LAST
        + """
    def __init__(self, load=0.0):
        self.wait_ratio = 10 * load

    @classmethod
    def for_load(cls, load):
        return cls(load)
""",
    )
    assert type(made(path)).for_load(0.5).wait_ratio == 5.0


# ---- packages


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with three entry points."""
    info = tmp_path / "offers_policies-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offers-policies\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[adlro.policies]\nlast = offers_policies:Last\nsjf = offers_policies:Sjf\ngone = offers_policies_gone:Gone\n"
        "first = offers_policies:Last\n"
    )
    (tmp_path / "offers_policies.py").write_text(
        HEAD + LAST + "\nfrom adlro.decide.policies.sjf import Sjf as Theirs\nclass Sjf(Theirs):\n    name = 'sjf'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own_source._points.cache_clear()
    assert {point.name for point in importlib.metadata.entry_points(group="adlro.policies")} >= {"last"}
    yield tmp_path
    own_source._points.cache_clear()


def test_an_installed_package_offers_policies(package: Path) -> None:
    policy = of_package("last")()
    assert policy.act(POINT)[0].tolist() == [1, 0]
    assert policy.source.text == "package: last (offers-policies 1.2)"
    assert pickle.loads(pickle.dumps(policy)).name == "last"


def test_a_catalog_has_all_and_says_what_cannot_be_used(package: Path) -> None:
    path = put(package, LAST.replace('"last"', '"latest"'))
    found = catalog([f"{path}:Last", f"{package}/nowhere.py:X"])
    assert list(found.own) == ["last", "latest"]
    assert (found.source_of("sjf"), found.source_of("latest")) == (BUILT_IN, f"{path}:Last")
    assert {each.name for each in found.broken} == {"sjf", "gone", "first", f"{package}/nowhere.py:X"}
    problems = {each.name: each.problem for each in found.broken}
    assert "'sjf' is taken" in problems["sjf"]
    assert "No module named 'offers_policies_gone'" in problems["gone"]
    assert "must have one name" in problems["first"]
    assert found.kind("fcfs") is POLICIES["fcfs"]
    with pytest.raises(InvalidInput, match=r"there is no policy 'first'; there are fcfs.*must have one name"):
        found.kind("first")


def test_what_is_not_there_decides_nothing_and_says_why(tmp_path: Path) -> None:
    found = catalog([f"{put(tmp_path, '1 / 0')}:Last"])
    absent = found.absent("last")
    assert absent.name == "last"
    with pytest.raises(Unsupported, match=r"no policy of this name.*mine\.py, line .*ZeroDivisionError") as raised:
        absent.act(POINT)
    assert raised.value.reason == "POLICY_MISSING"
