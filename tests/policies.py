"""The registered policies as tests make them: one whose package, or checkpoint, is not there skips its test."""

from __future__ import annotations

import pytest

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.dqn import SHIPPED


def there() -> tuple[str, ...]:
    """Names of those that need nothing but what is there."""
    return tuple(name for name in POLICIES if name != "hungarian" and (name != "dqn" or SHIPPED.exists()))


def made(name: str) -> Policy:
    """The policy of a name."""
    if name == "hungarian":
        pytest.importorskip("scipy")
    if name == "dqn" and not SHIPPED.exists():
        pytest.skip("no checkpoint is shipped with this version")
    return POLICIES[name]()
