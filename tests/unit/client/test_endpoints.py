from __future__ import annotations

import pytest

from adlro.client import Endpoints, ServiceName
from adlro.errors import InvalidInput


def test_the_other_services_are_at_the_next_ports() -> None:
    endpoints = Endpoints.resolve("gpu.example.org:9000", {})
    assert [endpoints.address(name) for name in ServiceName] == [
        f"gpu.example.org:{port}" for port in range(9000, 9004)
    ]


def test_without_a_word_it_is_the_port_of_adlro_up() -> None:
    assert Endpoints.resolve(None, {}).ingest == "127.0.0.1:7701"


def test_environment_names_each_service() -> None:
    env = {"ADLRO_SERVER": "a:1", "ADLRO_ORCHESTRATOR_SERVER": "b:2", "ADLRO_CLUSTER_SERVER": "[::1]:3"}
    endpoints = Endpoints.resolve(None, env)
    assert endpoints == Endpoints("a:1", "a:2", "b:2", "[::1]:3")


def test_a_server_given_by_hand_is_one_suite() -> None:
    env = {"ADLRO_SERVER": "a:1", "ADLRO_ORCHESTRATOR_SERVER": "b:2"}
    assert Endpoints.resolve("c:10", env).orchestrator == "c:12"


@pytest.mark.parametrize("address", ["", "host", "host:", ":7701", "host:0", "host:65536", "host:port", "::1:7701"])
def test_what_is_no_address_is_refused_by_name(address: str) -> None:
    with pytest.raises(InvalidInput, match="ADLRO_DECOMPOSE_SERVER") as caught:
        Endpoints.resolve(None, {"ADLRO_DECOMPOSE_SERVER": address or " "})
    assert caught.value.field == "ADLRO_DECOMPOSE_SERVER"


def test_ports_beyond_the_last_are_refused() -> None:
    with pytest.raises(InvalidInput, match="65536"):
        Endpoints.resolve("host:65535", {})
