"""Who looks at a page, and what he may see and do. The services decide; the page only leaves out what they refuse.

The twin of adlro.services.ingest.ownership, for streams that the page reads with a token of its own; a test compares
both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from adlro.kit.identity import Caller, Role
from adlro.records.jobs import Job

SUBMITTERS_ACTIONS: Final = ("submit", "cancel", "hold", "release", "requeue")
OPERATORS_ACTIONS: Final = (*SUBMITTERS_ACTIONS, "drain", "undrain", "policy", "shadow", "clock")
# Topics that only those see who may read everything.
_READERS_TOPICS: Final = frozenset({"decisions", "gpu"})
_READERS_SCREENS: Final = ("decisions", "policies", "learning", "reports")


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks.

    Attributes:
        user: his name; empty: everybody is let in without one.
        roles: his roles; empty without users.
        sees_all: he may read other users' jobs, and everything else.
        submits: he may submit and cancel jobs of his own.
        acts_for_all: he may cancel any job, and set what an operator sets.
    """

    user: str
    roles: frozenset[Role]
    sees_all: bool
    submits: bool
    acts_for_all: bool

    @classmethod
    def of(cls, caller: Caller) -> Viewer:
        """A caller with a token."""
        submits = bool(caller.roles & {Role.SUBMITTER, Role.OPERATOR})
        return cls(caller.user, caller.roles, caller.sees_all, submits, caller.acts_for_all)

    @property
    def only_user(self) -> str | None:
        """Whose jobs he sees alone; None: he sees all."""
        return None if self.sees_all else self.user

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of the actions that the services would let him do."""
        if self.acts_for_all:
            return OPERATORS_ACTIONS
        return SUBMITTERS_ACTIONS if self.submits else ()

    @property
    def readers_screens(self) -> tuple[str, ...]:
        """The screens of those who may read everything."""
        return _READERS_SCREENS if self.sees_all else ()

    def may_follow(self, topic: str) -> bool:
        """Whether a topic of the live stream is for him."""
        return self.sees_all or topic not in _READERS_TOPICS

    def sees(self, job: Job) -> bool:
        """Whether he may see a job."""
        return self.sees_all or job.spec.user == self.user

    def may_change(self, job: Job) -> bool:
        """Whether he may cancel and hold a job, and submit it again."""
        return self.acts_for_all or (self.submits and job.spec.user == self.user)

    def may_release(self, job: Job) -> bool:
        """Whether he may release a job: what an operator holds, only an operator releases."""
        by_operator = job.hold is not None and job.hold.by_operator
        return self.acts_for_all or (self.may_change(job) and not by_operator)

    def scope(self, topic: str) -> tuple[str, ...]:
        """What distinguishes his view of a topic from others': those of one scope get the same bytes."""
        whose = topic == "job" and self.submits and not self.acts_for_all
        return (
            "all" if self.sees_all else "own",
            "acts" if topic == "job" and self.acts_for_all else "",
            self.user if whose or not self.sees_all else "",
        )


EVERYBODY: Final = Viewer("", frozenset(), sees_all=True, submits=True, acts_for_all=True)
"""Whoever reaches a page without users."""
