"""notify's settings: environment keys ADLRO_NOTIFY_*."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator

from adlro.kit.addresses import split_address
from adlro.kit.settings import ServiceSettings


class NotifySettings(ServiceSettings):
    """The settings of notify; those of a store, which it shares with all services, have no effect here."""

    service_name: ClassVar[str] = "notify"

    webhooks_file: str = ""
    """The file of webhooks (docs/notifications.md); it must be set."""
    data_dir: str = ""
    """Directory of the messages that are not delivered yet; it must be set."""
    ingest_address: str = "127.0.0.1:7701"
    """Address of ingest."""
    decompose_address: str = "127.0.0.1:7702"
    """Address of decompose."""
    orchestrator_address: str = "127.0.0.1:7703"
    """Address of the orchestrator."""
    cluster_address: str = "127.0.0.1:7704"
    """Address of the cluster's service."""
    connect_timeout_s: float = Field(default=5.0, gt=0, le=60)
    """Time for a receiver's name, connection and TLS together."""
    answer_timeout_s: float = Field(default=10.0, gt=0, le=300)
    """Time for a receiver's answer, however slowly it comes."""
    give_up_after_s: float = Field(default=86_400.0, ge=0, le=2_592_000)
    """Time after which a message that no try has delivered is given up."""
    longest_pause_s: float = Field(default=300.0, gt=0, le=3600)
    """The longest pause between two tries."""
    queue_messages: int = Field(default=10_000, ge=1, le=1_000_000)
    """Messages of one webhook that wait; beyond, the oldest ones are dropped."""
    queue_mib: int = Field(default=16, ge=1, le=4096)
    """Size of these messages together; beyond, the oldest ones are dropped."""
    look_every_s: float = Field(default=5.0, ge=0.1, le=600)
    """Interval at which GPUs, policy and drift are looked at."""
    settle_s: float = Field(default=30.0, ge=0, le=3600)
    """A fallback of the policy, or drift, is told once it has lasted so long; its end likewise."""
    niceness: int = Field(default=10, ge=0, le=19)
    """On a full machine notify gives way to the services, as `nice` does; 0: it does not."""

    @field_validator("ingest_address", "decompose_address", "orchestrator_address", "cluster_address")
    @classmethod
    def _check_service(cls, value: str) -> str:
        split_address(value)
        return value
