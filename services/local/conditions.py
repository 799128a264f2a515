"""Why GPUs are out, from several sources at once. A GPU is back when no source has anything against it. Plain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from adlro.records.events import GpuCondition


class Conditions:
    """The reasons why GPUs are out.

    Args:
        lost: called with a GPU and the reason when the first reason comes.
        back: called with a GPU when the last reason has gone.
    """

    def __init__(self, lost: Callable[[str, str], None], back: Callable[[str], None]) -> None:
        self._lost = lost
        self._back = back
        # By GPU, by source the reason.
        self._reasons: dict[str, dict[str, str]] = {}

    def set(self, gpu_id: str, source: str, reason: str) -> None:
        """Sets what a source has against a GPU; empty: nothing (any more)."""
        reasons = self._reasons.setdefault(gpu_id, {})
        was_out = bool(reasons)
        if reason:
            reasons[source] = reason
        else:
            reasons.pop(source, None)
        if reasons and not was_out:
            self._lost(gpu_id, reason)
        elif was_out and not reasons:
            self._back(gpu_id)

    def restore(self, gpu_id: str, source: str, reason: str) -> None:
        """Sets a reason of a GPU that everybody knows to be out."""
        self._reasons.setdefault(gpu_id, {})[source] = reason

    def reason(self, gpu_id: str) -> str:
        """All that is against a GPU, for people; empty: nothing."""
        return "; ".join(dict.fromkeys(self._reasons.get(gpu_id, {}).values()))

    def all(self) -> Sequence[GpuCondition]:
        """All reasons, for people: one line for each GPU that is out."""
        return tuple(GpuCondition(gpu_id, self.reason(gpu_id)) for gpu_id, reasons in self._reasons.items() if reasons)
