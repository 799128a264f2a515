"""A session's inputs and effects, recorded so that they can be replayed: to find a fault, and in tests.

A recording references the inputs themselves as long as the session lasts; services make none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adlro.decide.policies.base import Policy
from adlro.errors import AdlroError
from adlro.services.orchestrator.ledger.occupancy import Layout
from adlro.services.orchestrator.session.core.core import Core
from adlro.services.orchestrator.session.core.effects import Effects
from adlro.services.orchestrator.session.core.inputs import Input

Recorded = tuple[Input, float, str]
"""An input, its time, and the digest of its effects."""


class Recording:
    """A core whose steps are recorded.

    Args:
        core: the core to step.

    Attributes:
        steps: the steps so far.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.steps: list[Recorded] = []

    def step(self, given: Input, now: float) -> Effects:
        """See Core.step; a step that ends the session is recorded with its error."""
        try:
            effects = self.core.step(given, now)
        except AdlroError as error:
            self.steps.append((given, now, f"{type(error).__name__}: {error}"))
            raise
        self.steps.append((given, now, digest(effects)))
        return effects


def differences(core: Core, steps: Sequence[Recorded]) -> list[int]:
    """Replays a recording with a core in its initial state.

    Returns:
        The indices of the steps whose effects differ.
    """
    again = Recording(core)
    for given, now, _ in steps:
        with contextlib.suppress(AdlroError):  # the recording has its digest
            again.step(given, now)
    pairs = zip(steps, again.steps, strict=True)
    return [number for number, (before, after) in enumerate(pairs) if before[2] != after[2]]


def digest(effects: Effects) -> str:
    """A digest of the effects, to the last bit."""
    seen = hashlib.blake2b(digest_size=16)
    _add(seen, effects)
    return seen.hexdigest()


def _add(seen: Any, value: Any) -> None:
    """Adds a value to a digest: by content, not by identity."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        seen.update(f"{value.dtype}{value.shape}".encode())
        seen.update(np.ascontiguousarray(value).data)
    elif isinstance(value, Policy | Layout):
        seen.update(type(value).__name__.encode())
    elif dataclasses.is_dataclass(value):
        seen.update(type(value).__name__.encode())
        for field in dataclasses.fields(value):
            _add(seen, getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _add(seen, key)
            _add(seen, each)
    elif isinstance(value, list | tuple | np.ndarray):
        seen.update(f"[{len(value)}".encode())
        for each in value:
            _add(seen, each)
    else:
        seen.update(repr(value() if callable(value) else value).encode() + b"\0")
