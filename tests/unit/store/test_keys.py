"""Every name in Redis is spelled once, in adlro/store/keys.py, as stores that are in use have it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from adlro.services.orchestrator import lease
from adlro.store import keys, scripts

ROOT = Path(__file__).resolve().parents[3]
HOME = "adlro/store/keys.py"
# kit stands below the store and can't import it; nothing is ever kept under this one.
ELSEWHERE = {"adlro/kit/redis.py": {"adlro:probe"}}
# What only adlro/store/keys.py puts something behind, for all but scripts.
BEGINNINGS = {"JOB", "USER", "RAN", "ARRAY"}

# A store outlives the release that wrote it: a name here changes only together with what takes an old store over.
NAMES = {
    "SEQUENCE": "adlro:jobs:sequence",
    "REVISION": "adlro:jobs:revision",
    "EVENTS": "adlro:jobs:events",
    "JOB": "adlro:job:",
    "ACTIVE": "adlro:jobs:active",
    "ACTIVE_COUNTS": "adlro:jobs:active:users",
    "USER": "adlro:jobs:user:",
    "ARRAY": "adlro:jobs:array:",
    "INDEX": "adlro:jobs:index",
    "ENDED": "adlro:jobs:ended",
    "RAN": "adlro:jobs:ran:",
    "BUCKETS": "adlro:jobs:buckets",
    "REQUESTS": "adlro:jobs:requests",
    "OUTCOMES": "adlro:outcomes",
    "TOKEN": "adlro:orchestrator:token",
    "CURSOR": "adlro:orchestrator:cursor",
    "ATTAINED": "adlro:orchestrator:attained",
    "LEASE": "adlro:orchestrator:lease",
    "POLICY": "adlro:orchestrator:policy",
    "SHADOW": "adlro:orchestrator:shadow",
    "DRAINED": "adlro:orchestrator:drained",
    "QUOTAS": "adlro:orchestrator:quotas",
    "FAIR_SHARES": "adlro:orchestrator:fair_shares",
    "DECISIONS": "adlro:orchestrator:decisions",
    "EXPLANATIONS": "adlro:orchestrator:explanations",
    "FORECASTS": "adlro:orchestrator:forecasts",
    "CLUSTERS": "adlro:clusters",
    "CURRENT_CLUSTER": "adlro:current_cluster",
    "PAGE_SECRET": "adlro:page_secret",
    "EVALUATION": "adlro:evaluation",
    "STORE": "adlro:store",
    "OF_JOBS": "adlro:job*",
}
MADE: dict[Callable[..., str], str] = {
    keys.job_key: "adlro:job:<job_id>",
    keys.user_key: "adlro:jobs:user:<user>",
    keys.ran_key: "adlro:jobs:ran:<class>",
    keys.array_key: "adlro:jobs:array:<array_id>",
    keys.telemetry_key: "adlro:telemetry:<cluster>",
    keys.telemetry_latest_key: "adlro:telemetry:latest:<cluster>",
    keys.telemetry_latest_time_key: "adlro:telemetry:latest_time:<cluster>",
    keys.clock_key: "adlro:cluster:<cluster>:clock",
}


CLUSTER_KEYS = tuple(f"adlro:cluster:<cluster>:{part}" for part in ("side", "events", "attempts", "wake_ups"))


def spelled(source: str) -> list[str]:
    """What a file has of keys by itself, in code, text or comments."""
    found = re.findall(r"adlro:[^\s'\"]+|adlro:(?=['\"])", source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "adlro.store.keys":
            found += [each.name for each in node.names if each.name in BEGINNINGS]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "keys":
            found += [node.attr] if node.attr in BEGINNINGS else []
    return found


def test_no_other_file_spells_a_key() -> None:
    paths = {path.resolve() for folder in ("adlro", "services") for path in (ROOT / folder).rglob("*.py")}
    assert len(paths) > 100
    files = {path.relative_to(ROOT).as_posix(): path for path in paths}
    found = {name: set(spelled(path.read_text())) for name, path in files.items() if name != HOME}
    assert {name: those for name, those in found.items() if those} == ELSEWHERE


@pytest.mark.parametrize(
    "planted",
    [
        'LEASE = "adlro:orchestrator:lease"',
        "LEASE = b'adlro:orchestrator:lease'",
        'PREFIX = "adlro:"',
        'key = f"adlro:{kind}"',
        'key = "adlro:" + kind',
        "SCRIPT = \"return redis.call('GET', 'adlro:jobs:sequence')\"",
        '"""Keeps adlro:jobs:more."""',
        "x = 1  # adlro:jobs:more",
        "from adlro.store.keys import EVENTS, JOB",
        "from adlro.store.keys import USER as beginning",
        "key = keys.JOB + job_id",
    ],
)
def test_one_that_does_is_found(planted: str) -> None:
    assert spelled(planted)


@pytest.mark.parametrize(
    "harmless",
    ["from adlro.store.keys import EVENTS, job_key", 'raise ValueError("adlro: no such file")', "keys.job_key(job_id)"],
)
def test_one_that_does_not_is_passed_over(harmless: str) -> None:
    assert not spelled(harmless)


def test_names_stay_as_stores_have_them() -> None:
    assert {name: value for name, value in vars(keys).items() if str(value).startswith("adlro:")} == NAMES
    assert {name for name in vars(keys) if name.endswith("_key")} == {make.__name__ for make in MADE}
    assert keys.cluster_keys("<cluster>") == CLUSTER_KEYS
    for make, name in MADE.items():
        before, rest = name.split("<")
        assert make("a:b") == f"{before}a:b{rest.partition('>')[2]}"


def test_the_table_has_every_key_and_no_other() -> None:
    told = re.findall(r"^    (adlro:\S+)", keys.__doc__ or "", re.MULTILINE)
    whole = {name for key, name in NAMES.items() if key not in {*BEGINNINGS, "OF_JOBS"}}
    assert len(told) == len(set(told))
    assert set(told) == whole | set(MADE.values()) | set(CLUSTER_KEYS) | ELSEWHERE["adlro/kit/redis.py"]


def test_scripts_have_names_of_the_table_only() -> None:
    texts = [text for module in (scripts, lease) for text in vars(module).values() if "redis.call" in str(text)]
    assert len(texts) > 10
    for text in texts:
        assert set(re.findall(r"adlro:[^']*", str(text))) <= set(NAMES.values())
    assert not any("$" in text for name, text in vars(scripts).items() if name.isupper() and name[0] != "_")
