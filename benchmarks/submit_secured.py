"""What TLS, tokens and a user's limits cost a SubmitJob: the same ingest with and without them, in the same run.

    python -m benchmarks.submit_secured [--rounds 5] [--seconds 3] [--concurrency 16] [--seed 1] [--json]

Starts four ingests on one Valkey: `ingest` (plain text, as by default), `limits` (a user's jobs and rate are limited,
too generously to refuse any), `tokens` (a token with each call, and the limits), `tls` (all that over TLS). One client
process on one connection sends the same jobs to each in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from adlro.cli.certs import make_certificates
from adlro.kit.credentials import CA_ENV, TOKEN_ENV
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.identity import Role, new_token, users_line
from adlro.kit.testing import SpawnedService, spawn_service
from benchmarks import submit
from benchmarks.measuring import client_result, command, figures, obey, ratios, shown

LIMITS = {
    "ADLRO_INGEST_MAX_JOBS_PER_USER": "100000000",
    "ADLRO_INGEST_SUBMIT_RATE_PER_USER": "1000000",
    "ADLRO_INGEST_SUBMIT_BURST_PER_USER": "1000000",
}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds, the targets in turn."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_certificates(directory / "certs")
        # An operator: the jobs are those of many users.
        token = new_token("bench")
        (directory / "users").write_text(users_line(token, [Role.OPERATOR]) + "\n")
        (directory / "token").write_text(token + "\n")
        redis = stack.enter_context(EmbeddedRedis(directory / "redis"))
        users = {"ADLRO_USERS_FILE": str(directory / "users")}
        tls = {f"ADLRO_TLS_{kind}_FILE": str(directory / "certs" / name) for kind, name in _TLS_FILES.items()}
        services = {"ingest": {}, "limits": LIMITS, "tokens": LIMITS | users, "tls": LIMITS | users | tls}
        shown_by_client = {
            "tokens": {TOKEN_ENV: str(directory / "token")},
            "tls": {TOKEN_ENV: str(directory / "token"), CA_ENV: str(directory / "certs/ca.pem")},
        }
        targets: dict[str, SpawnedService] = {
            name: stack.enter_context(spawn_service("ingest", {"ADLRO_REDIS_URL": redis.url, **settings}))
            for name, settings in services.items()
        }
        asyncio.run(submit.record_cluster(targets["ingest"].address))
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in targets}
        asked = {"seconds": arguments.seconds, "concurrency": arguments.concurrency}
        for number in range(arguments.rounds):
            for name, target in targets.items():
                sent = {**asked, "seed": arguments.seed + number, "environment": shown_by_client.get(name, {})}
                result, cpu = client_result("benchmarks.submit", target, sent)
                if cpu is not None:
                    calls = result["calls"] * (1 + submit.WARM_UP_S / arguments.seconds)
                    result["server_cpu_us_per_call"] = 1e6 * cpu / calls
                rounds[name].append(result)
    over = {
        f"{key} of {name}": ratios(rounds, key, name, "ingest")
        for key in ("rate", "p50_ms", "p99_ms")
        for name in targets
        if name != "ingest"
    }
    return {**asked, "figures": figures(rounds), "ratios": over}


_TLS_FILES = {"CERT": "ingest.pem", "KEY": "ingest.key", "CA": "ca.pem"}


def report(result: dict[str, Any]) -> None:
    """The figures for people."""
    print(f"machine: {result['machine']}")
    print(
        f"SubmitJob, {result['concurrency']} at a time, {result['rounds']} rounds of {result['seconds']:g} s in turn, "
        f"seed {result['seed']}; median (least..greatest)"
    )
    for name, each in result["figures"].items():
        print(
            f"  {name:7s} {shown(each['rate'], 'calls/s'):32s} p50 {shown(each['p50_ms'], 'ms', 2):24s} "
            f"p99 {shown(each['p99_ms'], 'ms', 2):26s} server CPU "
            + (shown(each["server_cpu_us_per_call"], "us/call") if "server_cpu_us_per_call" in each else "unknown")
        )
    for key, each in result["ratios"].items():
        print(f"  {key:17s} over ingest {shown(each, '', 2)}")


def main() -> None:
    """Parses arguments; its clients are those of benchmarks.submit."""
    parser = command(__doc__, rounds=5, seconds=3.0)
    parser.add_argument("--concurrency", type=int, default=16)
    obey(parser, run, report, submit.client)


if __name__ == "__main__":
    main()
