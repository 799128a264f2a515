"""Whether only authenticated callers can make a service run programs: demanded at the start of one that runs them.

`adlro.clusterside.server.ClusterServer` calls them if its class is `closed`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import exceptions

from adlro.errors import InvalidInput, Unavailable
from adlro.kit.identity import Role, UsersFile, read_token
from adlro.kit.private_files import UMASK
from adlro.kit.redis import connect, redacted
from adlro.kit.settings import ServiceSettings

_MORE = "; docs/security.md explains it, and `adlro up --cluster local` sets it up by itself"
_LOGIN_OPTIONS = ("username", "password")


def require_closed(settings: ServiceSettings) -> None:
    """Returns if the settings let only authenticated callers in, here and at the store.

    Args:
        settings: of a service that runs programs.

    Raises:
        InvalidInput: there is no users' file, no token of the role `service`, or no password for Redis; or other users
            of this machine may change the users' file, or read the token. Names the environment key and the way out.
    """
    users = _users(settings.users_file)
    _check_service_token(settings.service_token_file, users)
    if not _has_password(settings.redis_url):
        raise _refused(
            "ADLRO_REDIS_PASSWORD_FILE",
            f"is not set: whoever reaches Redis at {redacted(settings.redis_url)} could run programs here; set a "
            "password in Redis (requirepass) and name a file with it",
        )


async def require_closed_store(redis_url: str) -> None:
    """Returns if Redis refuses callers without a password.

    Args:
        redis_url: with the password; it is asked without.

    Raises:
        InvalidInput: Redis answers to everybody.
        Unavailable: it does not answer.
    """
    try:
        await check_closed_store(redis_url)
    except (exceptions.RedisError, OSError) as error:
        raise Unavailable(f"Redis at {redacted(redis_url)} does not answer: {error}", retry_after_s=1.0) from None


async def check_closed_store(redis_url: str) -> None:
    """As `require_closed_store`, for loops that handle Redis' own errors (`adlro.kit.redis.watch_redis`).

    Raises:
        InvalidInput: Redis answers to everybody.
        redis.exceptions.RedisError: it does not answer.
    """
    client = connect(_without_password(redis_url))
    try:
        await client.ping()
    except exceptions.NoPermissionError:
        pass  # its default user may do other things
    except exceptions.ConnectionError as error:
        # At a Unix socket, redis-py wraps the refusal.
        if isinstance(error, exceptions.AuthenticationError) or isinstance(
            error.__cause__, exceptions.AuthenticationError
        ):
            return
        raise
    finally:
        await client.aclose()
    raise _refused(
        "ADLRO_REDIS_URL",
        f"Redis at {redacted(redis_url)} answers without a password: whoever reaches it could run programs here; set "
        "one in Redis (requirepass), or unset ADLRO_REDIS_URL: `adlro up` then starts a store of its own",
    )


def _users(path: str) -> UsersFile:
    key = "ADLRO_USERS_FILE"
    if not path:
        raise _refused(key, "is not set: any caller could run programs here; make a users' file with `adlro token`")
    users = UsersFile(path, key)
    for each in (Path(path), Path(path).absolute().parent):
        found = each.stat()
        # In a directory with the sticky bit, only its owner replaces a file.
        sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()) or (found.st_mode & 0o022 and not sticky):
            raise _refused(
                key,
                f"{each} can be changed by other users of this machine, who could add themselves; make yourself its "
                f"owner, and run: chmod go-w {each}",
            )
    return users


def _check_service_token(path: str, users: UsersFile) -> None:
    key = "ADLRO_SERVICE_TOKEN_FILE"
    if not path:
        raise _refused(key, "is not set; make a token with `adlro token suite --role service`")
    caller = users.caller(read_token(path, key))
    if caller is None or Role.SERVICE not in caller.roles:
        raise _refused(key, f"the token in {path} has no line with the role `service` in the users' file")
    if Path(path).stat().st_mode & UMASK:
        raise _refused(key, f"other users of this machine can read {path}, and run programs with it: chmod 600 {path}")


def _refused(key: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{key}: {problem}{_MORE}", field=key, reason="NOT_CLOSED")


def _has_password(redis_url: str) -> bool:
    parts = urlsplit(redis_url)
    return bool(parts.password or dict(parse_qsl(parts.query)).get("password"))


def _without_password(redis_url: str) -> str:
    parts = urlsplit(redis_url)
    query = urlencode([(key, value) for key, value in parse_qsl(parts.query) if key not in _LOGIN_OPTIONS])
    # Not geturl(), which leaves out the slashes before an empty host, and redis-py needs those of a Unix socket.
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{'?' if query else ''}{query}"
