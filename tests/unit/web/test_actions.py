"""What a user changes from the page: values that are no text and no number are refused by their name."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock

import pytest

from adlro.errors import InvalidInput
from adlro.services.web.actions import action
from tests.unit.web.world import OPS

HALF = "\ud800"
HUGE = 10**400


@pytest.mark.parametrize(
    ("name", "given", "field"),
    [
        ("cancel", {"job_id": HALF}, "job_id"),
        ("drain", {"node_id": "a", "reason": HALF}, "reason"),
        ("policy", {"policy": HALF}, "policy"),
        ("clock", {"scale": HUGE}, "scale"),
        ("clock", {"mode": HALF}, "mode"),
        ("submit", {"job": {"job_type": "simulation"}, "request_id": HALF}, "request_id"),
        ("submit", {"job": {"job_type": "simulation", "name": HALF}}, "name"),
        ("submit", {"job": {"job_type": "simulation", "priority": HUGE}}, "priority"),
        ("submit", {"job": {"job_type": "simulation", "gpu_models": ["a", HALF]}}, "gpu_models"),
        ("submit", {"job": {"job_type": "simulation", "labels": {"a": HALF}}}, "labels"),
        ("submit", {"job": {"job_type": "simulation", "labels": {HALF: "a"}}}, "labels"),
        ("submit", {"job": {"argv": ["x"], "environment": {"A": HALF}}}, "environment"),
    ],
)
async def test_half_a_character_and_a_number_without_end_are_refused(name: str, given: dict[str, Any], field: str):
    client = AsyncMock()
    with pytest.raises(InvalidInput) as refused:
        await action(name)(client, OPS, given)
    assert refused.value.field == field
    assert client.mock_calls == []
