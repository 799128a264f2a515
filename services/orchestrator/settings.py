"""The orchestrator's settings: environment keys ADLRO_ORCHESTRATOR_*."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from adlro.errors import InvalidInput
from adlro.kit.settings import ServiceSettings
from adlro.records.precedence import parse_precedence


class OrchestratorSettings(ServiceSettings):
    """The orchestrator's settings."""

    service_name: ClassVar[str] = "orchestrator"

    cluster_address: str = "127.0.0.1:7704"
    """Address of the cluster's service."""
    decompose_address: str = "127.0.0.1:7702"
    """Address of decompose."""
    policy: str = ""
    """The policy at start; empty: the policy set last, or `dqn`."""
    shadow_policy: str = ""
    """A shadow policy, which places nothing; empty: the shadow policy set last, or none."""
    policy_file: str = ""
    """[Policies of your own](own_policy.md): `PATH:CLASS`, several with commas; their code runs in the orchestrator."""
    checkpoint: str = ""
    """The learned policy's ONNX file, or a folder whose newest file is used; empty: the shipped one."""
    promoted: str = ""
    """The folder into which [`adlro policy promote`](own_learning.md) puts checkpoints: its newest file goes before
    `checkpoint`; empty: none is looked for. `adlro up` sets it to a folder of its data directory.
    """
    candidate: str = ""
    """The candidate's ONNX file ([adlro learn](own_learning.md)), for the shadow policy `dqn_candidate`; it need not be
    there; empty: none is looked for. `adlro up` sets it to that in its data directory.
    """
    decision_deadline_s: float = Field(default=0.05, gt=0, le=60)
    """Time limit of a learned decision up to 16,384 pairs of job and GPU; in proportion above."""
    wait_ratio: float | None = Field(default=None, ge=0, le=1e9)
    """Limit on waits: a job goes first once its wait exceeds this multiple of the sum of its own best duration, a
    typical duration of the waiting jobs and the mean elapsed time of the running jobs
    ([P6](guarantees.md#placement)); 0: no limit; empty: 20.
    """
    precedence: str = ""
    """Which waiting jobs go before others, [whatever the policy](jobs.md#which-job-goes-first): weights and durations,
    such as `fair_share=2,age=1,priority=1,half_life=7d,full_age=1d`; empty: the policy alone decides.
    """
    preemption: Literal["off", "on"] = "off"
    """`on`: a policy that stops jobs may stop [those whose users allow it](jobs.md#jobs-that-can-be-stopped) to start
    others; `off`: no job is ever stopped for another.
    """
    preemption_min_run_s: float = Field(default=60.0, ge=0, le=31_536_000)
    """Seconds of cluster time that a job's program has run since its last start before it may be stopped."""
    lease_s: float = Field(default=3.0, ge=0.5, le=60)
    """How long the acting orchestrator's lease lasts without renewal."""
    max_attempts: int = Field(default=5, ge=1, le=1000)
    """Lost attempts after which a job fails; attempts lost to a restart of the cluster, or stopped for another job, are
    not counted.
    """
    prediction_timeout_s: float = Field(default=2.0, gt=0, le=60)
    """How long to wait for decompose before declared runtimes are used instead."""
    decisions_kept: int = Field(default=10_000, ge=1, le=1_000_000)
    """This process's latest decisions that can be explained with every GPU."""
    decisions_stored: int = Field(default=50_000, ge=0, le=10_000_000)
    """About how many decisions are kept in Redis, for lists and after restarts; about 0.5 kB each; 0: none."""
    explanations_stored: int = Field(default=5_000, ge=0, le=1_000_000)
    """About how many of the stored decisions are kept in full: the best pairs, 32 candidates, and the excluded GPUs by
    reason; about 5 kB each.
    """

    @field_validator("precedence")
    @classmethod
    def _is_a_rule(cls, text: str) -> str:
        try:
            parse_precedence(text)
        except InvalidInput as error:
            raise ValueError(error.message.removeprefix("precedence: ")) from None
        return text
