"""Who calls a service, and with which roles. Plain data; no gRPC, no tokens."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.StrEnum):
    """A caller's role; adlro.kit.access lists the methods of each role."""

    # Submits, cancels and reads only his own jobs.
    SUBMITTER = "submitter"
    # Reads everything and changes nothing.
    READER = "reader"
    # Reads everything, cancels any job, sets policies, drains nodes, sets the clock; may submit for another user.
    OPERATOR = "operator"
    # Another service of the suite.
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a service says of its caller.

    Attributes:
        user: empty where no tokens are needed.
        roles: all of them where no tokens are needed.
        tokens_needed: the service has a users' file.
    """

    user: str
    roles: tuple[Role, ...]
    tokens_needed: bool
