"""The meaning of Redis's errors: whether the store is usable at present, the reason, and the remedy. No I/O.

The clients of `adlro.kit.redis` raise only RedisErrors; this module translates them for callers, health and the log.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from redis import exceptions
from redis.asyncio.connection import DefaultParser

from adlro.errors import AdlroError, LimitExceeded, Unavailable

RETRY_AFTER_S = 1.0
# A disk with no space has none a second later.
_RETRY_AFTER_HELP_S = 10.0

_UNSURE = "; whether the change was recorded is unknown, so repeat the call with the same request id"

# Bytes were lost on the way: the connection's further replies are unreliable.
_OUT_OF_STEP = ("ERR Protocol error", "ERR unknown command")


class StoreRefused(exceptions.ResponseError):
    """Redis refuses a command because of its own state: one for which redis-py has no class."""


class StoreParser(DefaultParser):  # type: ignore[misc,valid-type]  # redis-py chooses its class at import
    """redis-py's parser, which also recognises all error states of a store, and a connection that is out of step."""

    EXCEPTION_CLASSES = {  # noqa: RUF012 - as of the base
        **DefaultParser.EXCEPTION_CLASSES,
        "MISCONF": StoreRefused,
        "BUSY": StoreRefused,
        "NOREPLICAS": StoreRefused,
    }

    @classmethod
    def parse_error(cls, response: str) -> Exception:
        """The exception of an error reply."""
        if response.startswith(_OUT_OF_STEP):
            return exceptions.ConnectionError(response)
        error: Exception = super().parse_error(response)
        return error


class _State(NamedTuple):
    """A state in which Redis refuses commands."""

    problem: str
    way_out: str
    reason: str = "STORE_REFUSED"
    error: type[AdlroError] = Unavailable
    retry_after_s: float = _RETRY_AFTER_HELP_S


_PASSWORD = _State(
    "refuses this password",
    "set ADLRO_REDIS_PASSWORD_FILE, or name user and password in ADLRO_REDIS_URL",
)
_STATES = {
    "MISCONF": _State(
        "can't write to its disk",
        "free space on it, or repair it: then Redis continues by itself",
        "STORE_CANNOT_WRITE",
    ),
    "OOM": _State(
        "is out of memory",
        "raise its maxmemory (CONFIG SET maxmemory): then Redis continues",
        "STORE_FULL",
        LimitExceeded,
    ),
    "BUSY": _State(
        "is busy with a script that does not end",
        "end it by SCRIPT KILL or FUNCTION KILL; if Redis refuses, restart it",
        "STORE_BUSY",
        retry_after_s=RETRY_AFTER_S,
    ),
    "LOADING": _State("is loading its data", "wait until it is done", "STORE_LOADING", retry_after_s=RETRY_AFTER_S),
    "READONLY": _State("is a replica, which accepts no changes", "name its primary in ADLRO_REDIS_URL"),
    "MASTERDOWN": _State("is a replica whose primary is away", "name a primary in ADLRO_REDIS_URL"),
    "NOREPLICAS": _State("has fewer replicas than it requires", "start them, or lower its min-replicas-to-write"),
    "CLUSTERDOWN": _State("is a cluster that is down", "bring its nodes back"),
    "MAXCLIENTS": _State("has reached its limit of clients", "raise its maxclients (CONFIG SET maxclients)"),
    "NOAUTH": _PASSWORD,
    "WRONGPASS": _PASSWORD,
    "NOPERM": _State("denies this user the command", "grant the user the right (ACL SETUSER)"),
}


class StoreProblem(NamedTuple):
    """The reason why the store is not usable at present.

    Attributes:
        code: the same for the same state, such as `MISCONF`; empty without an answer.
        text: the problem, with Redis as the subject, and Redis's own words; not for all users.
        way_out: the remedy.
    """

    code: str
    text: str
    way_out: str


def store_problem(error: BaseException) -> StoreProblem | None:
    """The store's problem by an error of a Redis client; None if the error is the caller's bug."""
    if isinstance(error, exceptions.RedisError):
        code = _code(error)
        if code in _STATES:
            state = _STATES[code]
            # A script's error ends with its place in the script.
            words = str(error).partition(" script: ")[0].rstrip(".")
            return StoreProblem(code, f"{state.problem} ({words})", state.way_out)
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | exceptions.InvalidResponse):
        detail = str(error).rstrip(".") or type(error).__name__
        return StoreProblem("", f"does not answer ({detail})", "")
    return None


def store_error(error: BaseException, *, unsure: str = _UNSURE) -> AdlroError | None:
    """The error for a client whose call ended by an error of a Redis client; None as for `store_problem`.

    Args:
        error: error of a Redis client.
        unsure: the consequence if the command's outcome is unknown; empty for a command without changes.
    """
    problem = store_problem(error)
    if problem is None:
        return None
    if not problem.code:
        return Unavailable(
            f"the store (Redis) does not answer{unsure}",
            reason="STORE_UNAVAILABLE",
            retry_after_s=RETRY_AFTER_S,
        )
    state = _STATES[problem.code]
    return state.error(
        f"the store (Redis) {state.problem}; {state.way_out}",
        reason=state.reason,
        retry_after_s=state.retry_after_s,
    )


def _code(error: exceptions.RedisError) -> str:
    text = str(error)
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return "WRONGPASS"
    if isinstance(error, exceptions.ExecAbortError):
        # "Transaction discarded because of: MISCONF ..."
        return text.partition("because of: ")[2].partition(" ")[0]
    if "max number of clients" in text:
        return "MAXCLIENTS"
    code: Any = error.status_code
    return code or ""
