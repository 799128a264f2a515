"""Payloads, exit statuses and pieces of logs, and their messages."""

from __future__ import annotations

from adlro.records.payloads import Container, ExitStatus, LaunchStyle, LogChunk, Mount, Payload
from adlro.v1 import payload_pb2
from adlro.wire.fields import Part, Translation

DEFAULT_STOP_GRACE_S = 10.0
DEFAULT_LOG_LIMIT_MIB = 256

Translation(Mount, payload_pb2.Mount)
Translation(Container, payload_pb2.Container)
_PAYLOAD = Translation(
    Payload,
    payload_pb2.Payload,
    parts={
        "stop_grace_s": Part(
            {"stop_grace_s": lambda grace_s: grace_s},
            lambda message: message.stop_grace_s if message.HasField("stop_grace_s") else DEFAULT_STOP_GRACE_S,
        ),
        "log_limit_mib": Part(
            {"log_limit_mib": lambda limit_mib: limit_mib},
            lambda message: message.log_limit_mib or DEFAULT_LOG_LIMIT_MIB,
        ),
        "launch_style": Part(
            {"launch_style": int},
            lambda message: LaunchStyle(message.launch_style or LaunchStyle.ONE_PER_NODE),
        ),
    },
)
payload_to_proto, payload_from_proto = _PAYLOAD.to_proto, _PAYLOAD.from_proto

_EXIT = Translation(ExitStatus, payload_pb2.ExitStatus)
exit_to_proto, exit_from_proto = _EXIT.to_proto, _EXIT.from_proto

_CHUNK = Translation(LogChunk, payload_pb2.LogChunk)
chunk_to_proto, chunk_from_proto = _CHUNK.to_proto, _CHUNK.from_proto
