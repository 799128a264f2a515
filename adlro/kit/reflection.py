"""Server reflection, so that `buf curl` and `grpcurl` need no .proto: v1 and v1alpha.

grpcio-reflection knows v1alpha only. The messages of v1 are the same on the wire, so its servicer answers for both.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

V1_NAME = "grpc.reflection.v1.ServerReflection"


def add_reflection(service_names: Sequence[str], server: grpc.aio.Server) -> None:
    """Registers reflection for proto services whose code is imported.

    Args:
        service_names: full proto names.
        server: a server before its start.
    """
    names = (*service_names, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    servicer = ReflectionServicer(names)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(V1_NAME, {"ServerReflectionInfo": handler}),))
