"""local's settings: environment keys ADLRO_LOCAL_*."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from adlro.clusterside.attempts import OUTCOMES_KEPT
from adlro.clusterside.settings import ClusterSettings


class LocalSettings(ClusterSettings):
    """The settings of local."""

    service_name: ClassVar[str] = "local"

    cluster_name: str = Field(default="local", pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    # Attempts with their logs, and the ids of GPUs; on a local disk, for one service alone.
    data_dir: str = Field(default="", validate_default=True)
    # Pretended GPUs for real programs: v100_sxm2:2,rtx_2080_ti:2, or by node a=v100_sxm2:2,b=a100:2. Empty: real ones.
    fake_gpus: str = ""
    # As root: a file with lines "<user> <Unix user>", or "* *" for the same name; never root unless it says so.
    users_map: str = ""
    # Files <user>/<NAME> with the values of secrets, mode 0600, of that Unix user or of root; empty: there are none.
    secrets_dir: str = ""
    # Socket of the container engine, for jobs with an image; empty: no containers.
    engine: str = "/var/run/docker.sock"
    # The engine's network that containers are in; none: they reach nothing.
    container_network: str = Field(default="bridge", min_length=1)
    # Paths, separated by commas, below which containers may mount files of this machine.
    mount_prefixes: str = ""
    # CPU cores and memory that jobs share; 0: what this process may use of the machine.
    cpu_cores: int = Field(default=0, ge=0, le=4096)
    memory_mib: int = Field(default=0, ge=0, le=67_108_864)
    # Processes of a job at most, threads included, where the driver enforces it; 0: no limit.
    processes_of_job: int = Field(default=8192, ge=0, le=4_194_304)
    # What keeps programs within their limits; auto: the best that this machine has (see adlro doctor).
    driver: Literal["auto", "unit", "cgroup", "tree"] = "auto"
    # Ended attempts and their logs are deleted after so many days, and the oldest ones beyond so many attempts.
    log_keep_days: float = Field(default=30.0, gt=0, le=36_500)
    attempts_kept: int = Field(default=1000, ge=1, le=OUTCOMES_KEPT)

    @field_validator("data_dir")
    @classmethod
    def _check_data_dir(cls, value: str) -> str:
        if not value:
            raise ValueError("must be set: a directory on a local disk, for attempts and their logs")
        return str(Path(value).absolute())

    @field_validator("users_map", "secrets_dir")
    @classmethod
    def _make_absolute(cls, value: str) -> str:
        return str(Path(value).absolute()) if value else ""

    @field_validator("mount_prefixes")
    @classmethod
    def _check_prefixes(cls, value: str) -> str:
        for each in value.split(","):
            if each.strip() and not each.strip().startswith("/"):
                raise ValueError("must be absolute paths, separated by commas")
        return value

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The paths below which containers may mount."""
        return tuple(each.strip() for each in self.mount_prefixes.split(",") if each.strip())
