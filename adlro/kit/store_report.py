"""How a Redis or Valkey is set up, as far as ADLRO depends on it: for `adlro doctor`. Uses Redis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redis.exceptions import AuthenticationError, RedisError

from adlro.errors import Unavailable
from adlro.kit.redis import connect, redacted, wait_until_up
from adlro.kit.settings import with_password


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The settings of a store; an empty text, or None: it does not report them.

    Attributes:
        version: such as "valkey 9.0.1".
        memory_policy: `maxmemory-policy`; only `noeviction` keeps all records.
        memory_limit_mib: `maxmemory`; 0: none.
        append_only: every change is written to a file.
        asks_password: a caller without the password is refused.
    """

    version: str
    memory_policy: str
    memory_limit_mib: int
    append_only: bool | None
    asks_password: bool | None

    @property
    def problems(self) -> Mapping[str, str]:
        """What endangers records or callers, each with the command that mends it."""
        found = {}
        if self.memory_policy not in ("", "noeviction"):
            found[f"maxmemory-policy is {self.memory_policy}: jobs are deleted when its memory is full"] = (
                "redis-cli CONFIG SET maxmemory-policy noeviction && redis-cli CONFIG REWRITE"
            )
        if self.append_only is False:
            found["appendonly is off: the last changes are lost when it is killed"] = (
                "redis-cli CONFIG SET appendonly yes && redis-cli CONFIG REWRITE"
            )
        if self.asks_password is False:
            found["it asks for no password: every user of a machine that reaches it can act as any service"] = (
                "redis-cli CONFIG SET requirepass <password> && redis-cli CONFIG REWRITE, and ADLRO_REDIS_PASSWORD_FILE"
            )
        return found


async def inspect_store(url: str, password_file: str = "", timeout_s: float = 3.0) -> StoreReport:
    """Reads how a store is set up.

    Args:
        url: of the store.
        password_file: that holds its password, unless the URL does.
        timeout_s: for its first answer.

    Raises:
        Unavailable: it does not answer.
        InvalidInput: the password's file can't be read.
    """
    client = connect(with_password(url, password_file) if password_file else url)
    try:
        await wait_until_up(client, timeout_s)
        info = await client.info("server")
        name = "valkey" if "valkey_version" in info else "redis"
        version = f"{name} {info.get('valkey_version') or info.get('redis_version', '')}".strip()
        config = await _config(client)
        limit = config.get("maxmemory", "")
        append_only = config.get("appendonly")
        return StoreReport(
            version=version,
            memory_policy=config.get("maxmemory-policy", ""),
            memory_limit_mib=int(limit) >> 20 if limit.isdigit() else 0,
            append_only=None if append_only is None else append_only == "yes",
            asks_password=await _asks_password(url),
        )
    except (RedisError, OSError) as error:
        raise Unavailable(f"the store at {redacted(url)} does not answer: {error}") from None
    finally:
        await client.aclose()


async def _config(client: object) -> Mapping[str, str]:
    """Settings; empty where the store does not let us read them, as hosted ones."""
    try:
        found = await client.config_get("maxmemory", "maxmemory-policy", "appendonly")  # type: ignore[attr-defined]
    except RedisError:
        return {}
    return {_text(key): _text(value) for key, value in found.items()}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


async def _asks_password(url: str) -> bool | None:
    """Whether a caller without a password is refused."""
    scheme, _, rest = url.partition("://")
    client = connect(f"{scheme}://{rest.rpartition('@')[2]}")
    try:
        await client.ping()
    except AuthenticationError:
        return True
    except (RedisError, OSError):
        return None
    finally:
        await client.aclose()
    return False
