"""Settings of a service, read from environment keys ADLRO_*; an unknown key is an error, not a silent default.

`ADLRO_INGEST_<FIELD>` is for ingest alone and overrides `ADLRO_<FIELD>`, which every service reads and which exists
only for the fields of `ServiceSettings`. Secrets are no settings: settings name the files with them. Reads the
environment, and the file of Redis' password.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from adlro.kit.addresses import split_address
from adlro.kit.wrong_values import wrong_value

PREFIX = "ADLRO_"
SERVICES = ("ingest", "decompose", "orchestrator", "simcluster", "web", "notify")
# Services for the machine itself, which have no container.
HOST_SERVICES = ("local",)
# Services that ADLRO does not include: adapters to clusters (adlro/clusterside).
ADAPTERS = ("cluster",)
# Keys of the command, the client and the tests. They may be in the environment that a service inherits.
OTHER_KEYS = frozenset(
    {
        "ADLRO_SERVER",
        "ADLRO_CLUSTER_SERVER",
        "ADLRO_DECOMPOSE_SERVER",
        "ADLRO_ORCHESTRATOR_SERVER",
        "ADLRO_SHARED_DATA",
        "ADLRO_TOKEN_FILE",
    }
)
_VALUE_SHOWN_CHARACTERS = 60


class UnknownSetting(ValueError):
    """The environment has an ADLRO_ key that no service reads."""


class ServiceSettings(BaseSettings):
    """The settings of every service; a service adds its own fields.

    The texts below the fields are what docs/settings.md says: `make settings` writes it.
    """

    model_config = SettingsConfigDict(extra="forbid", use_attribute_docstrings=True)

    service_name: ClassVar[str] = ""

    listen: str = "127.0.0.1:0"
    """Address to listen on; port 0: any free port (`adlro up` gives 7701 to 7704, and 7705 to the page)."""
    metrics_listen: str = ""
    """Address of the Prometheus endpoint; empty: no endpoint."""
    redis_url: str = Field(default="redis://127.0.0.1:6379/0", repr=False)
    """The Redis to use; if not set, `adlro up` starts its own Valkey."""
    redis_password_file: str = ""
    """File with Redis' password, instead of one in the URL; empty: none, or the URL's."""
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """The least severe level of log lines; JSON lines on stderr."""
    drain_timeout_s: float = Field(default=8.0, gt=0, le=3600)
    """Time for running calls to finish after SIGTERM."""
    require_deadline: bool = True
    """Refuse unary calls without a deadline."""
    # gRPC's default limit, so that every client can read all messages. All messages that the rules allow fit, except
    # lists of thousands of large items: 65,536 GPUs in a cluster's description or a telemetry block, a page of jobs.
    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=64 * 1024, le=512 * 1024 * 1024)
    """The largest message that is received or sent; the default is gRPC's."""
    request_memory_mib: int = Field(default=192, ge=4, le=65_536)
    """Memory for the requests in progress; further requests wait, then get RESOURCE_EXHAUSTED. The default is enough
    for 24 open request streams, 12 of one user.
    """
    unread_timeout_s: float = Field(default=60.0, ge=0, le=86_400)
    """Time after which the service ends a response stream that its client does not read; 0: never."""
    tls_cert_file: str = ""
    """The service's certificate, in PEM; with its key and the authorities, the service uses TLS with callers and other
    services.
    """
    tls_key_file: str = ""
    """The certificate's private key, in PEM, without a password."""
    tls_ca_file: str = ""
    """The authorities for the certificates of callers and other services, in PEM."""
    tls_require_client_cert: bool = False
    """Refuse callers without a certificate (mTLS)."""
    users_file: str = ""
    """The [file of users and roles](security.md#who-may-do-what); empty: every caller may use every method."""
    service_token_file: str = ""
    """File with the token that the service sends to other services."""
    token_to_own_user: bool = False
    """Send that token only to processes of the service's own user, on 127.0.0.1 (Linux)."""
    trusted_network: str = ""
    """The name of a trusted network: the service may listen on it without TLS and tokens."""
    max_streams_per_connection: int = Field(default=10_000, ge=1, le=1_000_000)
    """Concurrent calls on one connection; further calls wait at the client."""
    max_streams_per_user: int = Field(default=100, ge=0, le=1_000_000)
    """Open streams of one user; 0: no limit."""
    max_connection_idle_s: float = Field(default=600.0, ge=0, le=86_400)
    """Time after which a connection without calls is closed; 0: never."""
    max_connection_age_s: float = Field(default=0.0, ge=0, le=31_536_000)
    """Time after which a connection accepts no new calls; 0: never."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources: arguments first, then the environment; no files."""
        return init_settings, _Environment(settings_cls)

    @field_validator("listen", "metrics_listen")
    @classmethod
    def _check_address(cls, value: str) -> str:
        if value:
            split_address(value)
        return value

    @field_validator("listen")
    @classmethod
    def _check_set(cls, value: str) -> str:
        if not value:
            raise ValueError("must be host:port, such as 127.0.0.1:7701")
        return value

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, value: str) -> str:
        if not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must be a URL such as redis://127.0.0.1:6379/0 (also rediss:// and unix://)")
        return value

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        files = {
            "ADLRO_TLS_CERT_FILE": self.tls_cert_file,
            "ADLRO_TLS_KEY_FILE": self.tls_key_file,
            "ADLRO_TLS_CA_FILE": self.tls_ca_file,
        }
        missing = [key for key, path in files.items() if not path]
        if missing and len(missing) < len(files):
            raise ValueError(f"TLS needs three files; {' and '.join(missing)} is not set (`adlro certs` makes them)")
        if missing and self.tls_require_client_cert:
            raise ValueError("ADLRO_TLS_REQUIRE_CLIENT_CERT needs TLS; set ADLRO_TLS_CERT_FILE and the other two")
        return self

    @model_validator(mode="after")
    def _add_redis_password(self) -> Self:
        if self.redis_password_file:
            self.redis_url = with_password(self.redis_url, self.redis_password_file)
        return self


S = TypeVar("S", bound=ServiceSettings)


def with_password(redis_url: str, password_file: str) -> str:
    """The URL with the password of a file's first line, in place of its own.

    Raises:
        ValueError: the file can't be read, or is empty.
    """
    key = f"{PREFIX}REDIS_PASSWORD_FILE"
    try:
        password = Path(password_file).read_text("utf-8").split("\n", 1)[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no text"
        # Without the file's content, which may be the password itself.
        raise ValueError(f"{key}: can't read the named file: {reason}") from None
    if not password:
        raise ValueError(f"{key}: the named file is empty")
    parts = urlsplit(redis_url)
    login, _, host = parts.netloc.rpartition("@")
    user = login.partition(":")[0]
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()


def environment_key(settings_cls: type[ServiceSettings], field: str) -> str:
    """The service's own key for a field: `listen` of ingest is `ADLRO_INGEST_LISTEN`."""
    service = f"{settings_cls.service_name}_" if settings_cls.service_name else ""
    return f"{PREFIX}{service}{field}".upper()


def known_keys(settings_cls: type[ServiceSettings]) -> dict[str, str]:
    """Environment key -> field, shared keys first, so that a later one wins over an earlier one."""
    shared = {f"{PREFIX}{name}".upper(): name for name in ServiceSettings.model_fields}
    own = {environment_key(settings_cls, name): name for name in settings_cls.model_fields}
    return shared | own


def check_keys(settings_cls: type[ServiceSettings], environment: Mapping[str, str]) -> None:
    """Raises UnknownSetting for a key ADLRO_* that neither this service nor another part of ADLRO reads."""
    known = known_keys(settings_cls)
    others = tuple(
        f"{PREFIX}{name}_".upper()
        for name in (*SERVICES, *HOST_SERVICES, *ADAPTERS)
        if name != settings_cls.service_name
    )
    unknown = sorted(
        key
        for key in environment
        if key.startswith(PREFIX) and key not in known and key not in OTHER_KEYS and not key.startswith(others)
    )
    if unknown:
        raise UnknownSetting("; ".join(_unknown(key, [*known, *OTHER_KEYS]) for key in unknown))


def load_settings(settings_cls: type[S]) -> S:
    """Reads the settings; on an error prints one line to stderr and exits with code 2."""
    try:
        return settings_cls()
    except UnknownSetting as error:
        problem = str(error)
    except ValidationError as error:
        problem = "; ".join(_problem(settings_cls, dict(each)) for each in error.errors())
    except ValueError as error:  # a list or table that is not valid JSON
        problem = " ".join(str(error).split())
    sys.stderr.write(f"{settings_cls.service_name or 'adlro'}: {problem}\n")
    raise SystemExit(2)


def describe_settings(settings_cls: type[ServiceSettings]) -> str:
    """A line for each setting: key, default, and whether all services share it."""
    lines = []
    for name, field in settings_cls.model_fields.items():
        shared = f"  (or {PREFIX}{name.upper()}, for all services)" if name in ServiceSettings.model_fields else ""
        lines.append(f"  {environment_key(settings_cls, name)}={field.default}{shared}")
    return "\n".join(lines)


class _Environment(PydanticBaseSettingsSource):
    """Reads each field from the service's own key, else from the shared one."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The raw text for a field, its name, and whether it must be parsed as JSON."""
        settings_cls = self.settings_cls
        assert issubclass(settings_cls, ServiceSettings)
        value = None
        for key, name in known_keys(settings_cls).items():
            if name == field_name and key in os.environ:
                value = os.environ[key]
        return value, field_name, self.field_is_complex(field)

    def __call__(self) -> dict[str, Any]:
        settings_cls = self.settings_cls
        assert issubclass(settings_cls, ServiceSettings)
        check_keys(settings_cls, os.environ)
        found: dict[str, Any] = {}
        for name, field in settings_cls.model_fields.items():
            value, _, is_complex = self.get_field_value(field, name)
            if value is None:
                continue
            try:
                found[name] = self.prepare_field_value(name, field, value, is_complex)
            except ValueError:
                raise ValueError(f"{environment_key(settings_cls, name)}: must be JSON (got {_shown(value)})") from None
        return found


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f"unknown setting {key}; did you mean {near[0]}?"
    return f"unknown setting {key}; known are {', '.join(sorted(known))}"


def _problem(settings_cls: type[ServiceSettings], error: Mapping[str, Any]) -> str:
    path = [str(part) for part in error["loc"]]
    if not path:
        # The error is about several fields together; their values may include a secret, so they are not shown.
        return str(error["msg"]).removeprefix("Value error, ")
    field = path[0]
    own = environment_key(settings_cls, field)
    shared = f"{PREFIX}{field}".upper()
    key = shared if own not in os.environ and shared in os.environ else own
    message = wrong_value(error)
    if error["type"] == "extra_forbidden":
        return f"unknown setting {field}"
    secret = "" if field == "redis_url" else f" (got {_shown(error['input'])})"
    return f"{'.'.join([key, *path[1:]])}: {message[:1].lower()}{message[1:]}{secret}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_SHOWN_CHARACTERS else text[: _VALUE_SHOWN_CHARACTERS - 3] + "..."
