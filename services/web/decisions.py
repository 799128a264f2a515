"""Decisions that were made: one with its candidates, a list by time, and where the shadow policy differed.

Asked under the user's own token; the orchestrator keeps them in the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from adlro.client import AsyncClient
from adlro.errors import InvalidInput, PermissionDenied
from adlro.records.decisions import Decision, DecisionBasis, DecisionFilter
from adlro.services.web.documents import decided_prediction, decision_document, decision_row, number
from adlro.services.web.picture import Picture
from adlro.services.web.questions import LATEST_S, or_none, real, whole
from adlro.services.web.viewers import Viewer

_SHOWN: Final = 32
_PAGE: Final = 100
# Decisions of one moment come together, so that the next page goes on before it; of a virtual clock that may be many.
_LARGEST_PAGE: Final = 2000
_DIFFERING: Final = 1000
# Decisions that place nothing are told too: so many are read at most.
_MOST_READ: Final = 5000


async def decision_answer(client: AsyncClient, decision_id: str) -> dict[str, Any]:
    """A decision with its candidates, what was predicted then, and what its job's run took since."""
    decision = await client.explain(decision_id=decision_id)
    job = await or_none(client.get(decision.job_id)) if decision.job_id and decision.placement.gpus else None
    ran_s, model = None, decision.candidates[0].gpu_model if decision.candidates else ""
    for attempt in () if job is None else job.attempts:
        if attempt.attempt == decision.attempt:
            begins_s, model = attempt.runs_from_s, attempt.gpu_model or model
            if attempt.end_s is not None and begins_s is not None:
                ran_s = number(attempt.end_s - begins_s)
    shown = decision_document(decision, _SHOWN)
    return {"decision": shown | {"prediction": decided_prediction(decision, model), "ran_s": ran_s}}


async def decisions_answer(client: AsyncClient, query: Mapping[str, str]) -> dict[str, Any]:
    """Decisions of a time, newest first; `older_s` is the `to` of the next page, None: there are no older ones."""
    count = whole(query, "count", _PAGE, 1, 1000)
    chosen = decision_filter(query)
    rows: list[dict[str, Any]] = []
    last: Decision | None = None
    # One more than a page: is there another?
    async for decision in client.decisions(chosen, page_size=min(count + 1, 1000)):
        if last is not None and len(rows) >= count and (decision.time_s < last.time_s or len(rows) >= _LARGEST_PAGE):
            return {"decisions": rows, "older_s": number(last.time_s)}
        rows.append(decision_row(decision))
        last = decision
    return {"decisions": rows, "older_s": None}


def decision_filter(query: Mapping[str, str]) -> DecisionFilter:
    """The filter of a query.

    Raises:
        InvalidInput: a parameter is not right.
    """
    from_s = real(query, "from", 0.0, 0.0, LATEST_S) if query.get("from") else None
    to_s = real(query, "to", 0.0, 0.0, LATEST_S) if query.get("to") else None
    basis = None
    if name := query.get("basis", ""):
        with suppress(ValueError):
            basis = DecisionBasis(name)
        if basis is None:
            raise InvalidInput(f"basis: must be one of {', '.join(DecisionBasis)}", field="basis")
    if query.get("differs", "") not in ("", "1"):
        raise InvalidInput("differs: must be 1, or be left out", field="differs")
    return DecisionFilter(
        from_s=from_s,
        to_s=to_s,
        job_id=query.get("job", ""),
        gpu_id=query.get("gpu", ""),
        basis=basis,
        differs_only=query.get("differs") == "1",
    )


async def differing_attempts(
    client: AsyncClient, viewer: Viewer, picture: Picture, from_s: float, to_s: float
) -> set[tuple[str, int]] | None:
    """The attempts of a time that the shadow policy would have started otherwise; None: there is no shadow.

    The newest ones, if they are very many: of the last _MOST_READ decisions that differed.
    """
    if not viewer.sees_all:
        raise PermissionDenied("a submitter does not get decisions")
    if picture.status is None or picture.status.shadow is None:
        return None
    found: set[tuple[str, int]] = set()
    chosen = DecisionFilter(from_s=from_s, to_s=to_s, differs_only=True)
    read = 0
    async for decision in client.decisions(chosen, page_size=_DIFFERING):
        read += 1
        if decision.placement.gpus:
            found.add((decision.job_id, decision.attempt))
        if len(found) >= _DIFFERING or read >= _MOST_READ:
            break
    return found
