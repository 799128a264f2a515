"""How many of its cases a long random comparison plays: a fifth in `make test`, all in `make test-deep`.

Such a comparison stands beside a fast one of the same rules. What a fifth may miss is found by `make test-deep`, which
is for changes to the simulator, the policies or the orchestrator's core.
"""

from __future__ import annotations

import os

DEEP = os.environ.get("ADLRO_TEST_DEEP") == "1"


def cases(count: int) -> int:
    """All cases in a deep run, else a fifth of them."""
    return count if DEEP else -(-count // 5)
