"""Policies by name, one home for all of them: those of ADLRO, those of installed packages, and those of files.

A package offers a policy by an entry point of the group `adlro.policies`; a file is named where ADLRO is started. A
policy that can't be used is kept with the reason, so that a service goes on and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from adlro.decide.own_policy import Own, own_policy
from adlro.decide.own_source import package_names, source_of_file, source_of_package
from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.base import Judgement
from adlro.decide.policies.dqn_candidate import DqnCandidate
from adlro.decide.rollouts.policy import DqnLookahead
from adlro.errors import InvalidInput, Unsupported
from adlro.records.status import BUILT_IN
from adlro.state.observation import Observation

POLICY_MISSING = "POLICY_MISSING"


@dataclass(frozen=True, slots=True)
class Broken:
    """A policy of one's own that can't be used.

    Attributes:
        name: its name; of a file, which has not told it, as the file was named.
        source: where it comes from.
        problem: why it can't be used.
    """

    name: str
    source: str
    problem: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """The policies that can be selected.

    Attributes:
        own: those of packages and files, by name.
        broken: those that can't be used.
        candidate: the learned policy's candidate can be selected, too.
    """

    own: dict[str, type[Own]] = field(default_factory=dict)
    broken: tuple[Broken, ...] = ()
    candidate: bool = False

    @property
    def kinds(self) -> dict[str, type[Policy]]:
        """All policies by name, ADLRO's first."""
        candidate: dict[str, type[Policy]] = {DqnCandidate.name: DqnCandidate} if self.candidate else {}
        return {**built_in(), **candidate, **self.own}

    def source_of(self, name: str) -> str:
        """Where a policy comes from, for people."""
        return self.own[name].source.text if name in self.own else BUILT_IN

    def kind(self, name: str) -> type[Policy]:
        """The policy of a name.

        Raises:
            InvalidInput: there is none; the message has all names, and why others can't be used.
        """
        kinds = self.kinds
        if name not in kinds:
            raise InvalidInput(
                f"policy: there is no policy {name!r}; there are {', '.join(kinds)}{self._why_not()}; "
                "a policy of your own needs `--policy-file` (of adlro up, evaluate, replay)",
                field="policy",
            )
        return kinds[name]

    def absent(self, name: str) -> Policy:
        """What stands for a selected policy that is not there: it decides nothing, and says why."""
        why = f"no policy of this name is there{self._why_not()}; select another one, or start with its --policy-file"
        return _absent(name, why)

    def _why_not(self) -> str:
        return "".join(f"; {each.problem}" for each in self.broken)


class Absent(Policy):
    """Stands for a policy that is selected and not there."""

    description = "is not there"
    problem = ""

    def weigh(self, observation: Observation) -> Judgement:
        """Raises Unsupported, POLICY_MISSING, always."""
        raise Unsupported(self.problem, field="policy", reason=POLICY_MISSING)


def built_in() -> dict[str, type[Policy]]:
    """ADLRO's own policies by name. Those with rollouts depend on the package of policies: they can't be part of it."""
    return {**POLICIES, DqnLookahead.name: DqnLookahead}


def catalog(files: Sequence[str] = (), packages: Sequence[str] | None = None, *, candidate: bool = False) -> Catalog:
    """The policies of ADLRO, of packages and of files; runs the code of the latter two.

    Args:
        files: each as PATH:CLASS.
        packages: names of policies of installed packages; None: all.
        candidate: with the learned policy's candidate.
    """
    own: dict[str, type[Own]] = {}
    broken = []
    given: list[tuple[str, str]] = [("package", name) for name in (package_names() if packages is None else packages)]
    given += [("file", text) for text in files]
    for kind, named in given:
        text = named
        try:
            source = source_of_package(named) if kind == "package" else source_of_file(named)
            text = source.text
            found = own_policy(source, frozenset((*built_in(), *own)))
            found()  # it must be possible to make one
        except InvalidInput as error:
            broken.append(Broken(named, text, error.message))
        else:
            own[found.name] = found
    return Catalog(own, tuple(broken), candidate)


def of_files(files: Sequence[str]) -> dict[str, type[Own]]:
    """The policies of files alone, by name.

    Args:
        files: each as PATH:CLASS.

    Raises:
        InvalidInput: one can't be used; the message names file, line and the way out.
    """
    found: dict[str, type[Own]] = {}
    for text in files:
        kind = own_policy(source_of_file(text), frozenset((*built_in(), *package_names(), *found)))
        kind()  # it must be possible to make one
        found[kind.name] = kind
    return found


def of_package(name: str) -> type[Own]:
    """A policy of an installed package.

    Raises:
        InvalidInput: it can't be used.
    """
    return own_policy(source_of_package(name), frozenset(built_in()))


def split_files(text: str) -> tuple[str, ...]:
    """The files of a setting: `a.py:A,b.py:B`."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _absent(name: str, problem: str) -> Policy:
    kind: type[Absent] = type("Absent", (Absent,), {"name": name, "problem": problem})
    return kind()
