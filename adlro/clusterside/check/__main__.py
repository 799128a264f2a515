"""Checks a cluster from the command line: `python -m adlro.clusterside.check HOST:PORT`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from adlro.clusterside.check import PATIENCE_S, inspect_cluster
from adlro.errors import AdlroError
from adlro.kit.credentials import Credentials


def main() -> int:
    """Prints what came of each rule.

    Returns:
        The exit code: 0 all rules are kept, 1 some are broken, 2 the check could not be made.
    """
    parser = argparse.ArgumentParser(
        prog="python -m adlro.clusterside.check",
        description="Checks a ClusterService against the contract. The cluster must be idle, without an acting "
        "orchestrator. ADLRO_TLS_*_FILE and ADLRO_TOKEN_FILE name the files of certificates and token.",
    )
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--redis", default="", metavar="URL", help="the store that issues fencing tokens")
    parser.add_argument("--rule", action="append", default=[], metavar="NAME", help="check only this rule; repeatable")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, metavar="S", help="how long to wait for events")
    parser.add_argument("--user", default="check", metavar="NAME", help="whose jobs the check launches")
    options = parser.parse_args()
    try:
        credentials = Credentials.from_environment()
        report = asyncio.run(
            inspect_cluster(
                options.address,
                credentials=credentials,
                redis_url=options.redis,
                rules=options.rule,
                patience_s=options.patience,
                user=options.user,
            )
        )
    except AdlroError as error:
        sys.stderr.write(f"{options.address} can't be checked: {error.message}\n")
        return 2
    sys.stdout.write(f"{report}\n")
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
