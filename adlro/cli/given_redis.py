"""The Redis of a user (ADLRO_REDIS_URL), in place of a Valkey that the suite starts."""

from __future__ import annotations

from adlro.cli.starting import StartFailed
from adlro.errors import Unavailable
from adlro.kit.closed import require_closed_store
from adlro.kit.redis import connect, wait_until_up
from adlro.kit.settings import with_password

REDIS_TIMEOUT_S = 5.0


async def check_redis(url: str, password_file: str, *, closed: bool) -> None:
    """Checks a user's Redis.

    Raises:
        StartFailed: it does not answer: services would wait for it for ever.
        InvalidInput: it answers without a password, and must not.
    """
    try:
        with_login = with_password(url, password_file) if password_file else url
        client = connect(with_login)
        try:
            await wait_until_up(client, REDIS_TIMEOUT_S)
        finally:
            await client.aclose()
        if closed:
            await require_closed_store(with_login)
    except (Unavailable, ValueError) as error:
        raise StartFailed(
            f"ADLRO_REDIS_URL: {error}; start that Redis, name another, or unset the variable to start a Valkey"
        ) from None
