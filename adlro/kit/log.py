"""Logs: one JSON object a line on stderr, from structlog and from the standard library alike.

Every line has the fields bound with `structlog.contextvars` (the kit binds request_id and job_id of a call).
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO, cast

import structlog

from adlro.text import to_json

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_GRPC_LOGGER, _UNDECODABLE = "grpc._cython.cygrpc", "Invalid encoding on "


class _Stderr:
    """The present sys.stderr; a closed reader must not end the service."""

    def write(self, text: str) -> int:
        try:
            return sys.stderr.write(text)
        except (BrokenPipeError, ValueError):
            return len(text)

    def flush(self) -> None:
        try:
            sys.stderr.flush()
        except (BrokenPipeError, ValueError):
            return


def configure(service: str, level: str) -> None:
    """Sets up logging of this process.

    Args:
        service: the field `service` of every line.
        level: debug, info, warning or error.
    """

    def name_service(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["service"] = service
        return event

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        name_service,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
    ]
    to_json = structlog.processors.JSONRenderer(serializer=_to_json)
    stderr = cast(TextIO, _Stderr())
    structlog.configure(
        processors=[*shared, to_json],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, to_json],
        )
    )
    logging.getLogger(_GRPC_LOGGER).addFilter(_as_broken_connection)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries' debug lines would drown ours.
    root.setLevel(max(_LEVELS[level], logging.INFO))


def _as_broken_connection(record: logging.LogRecord) -> bool:
    """Text that gRPC can't decode comes from a connection that has lost bytes: no bug of this process."""
    if isinstance(record.msg, str) and record.msg.startswith(_UNDECODABLE):
        record.levelno, record.levelname, record.exc_info = logging.INFO, "INFO", None
    return True


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """A logger; `log.info("job recorded", job_id=...)`."""
    return cast(structlog.typing.FilteringBoundLogger, structlog.get_logger())


def _to_json(event: Any, **_: Any) -> str:
    # The event first: people read these lines too.
    ordered = {key: event[key] for key in ("time", "level", "service", "event") if key in event}
    return to_json(ordered | event, default=repr)
