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
    """The cluster's name."""
    data_dir: str = Field(default="", validate_default=True)
    """The directory of attempts, their logs and the GPUs' ids, on a local disk; must be set (`adlro up` does)."""
    fake_gpus: str = ""
    """Pretended GPUs for real programs: `v100_sxm2:2,rtx_2080_ti:2`, or by node `a=v100_sxm2:2,b=rtx_2080_ti:2`; empty:
    the machine's own.
    """
    users_map: str = ""
    """Needed where the service is root: a file of lines `<user> <Unix user>`, `* *` (the same name) or `* root`;
    programs run as root only where it names root.
    """
    secrets_dir: str = ""
    """Files `<user>/<NAME>` with the values of jobs' secrets, mode 0600, of that Unix user or of root; empty: none."""
    engine: str = "/var/run/docker.sock"
    """Socket of the container engine, for jobs with an image; it may be started later; empty: no containers."""
    container_network: str = Field(default="bridge", min_length=1)
    """The engine's network that containers are in; `none`: they reach nothing."""
    mount_prefixes: str = ""
    """Paths, separated by commas, below which containers may mount this machine's files."""
    cpu_cores: int = Field(default=0, ge=0, le=4096)
    """Cores that jobs share; 0: all that the service may use of the machine."""
    memory_mib: int = Field(default=0, ge=0, le=67_108_864)
    """Memory that jobs share; 0: all that the service may use of the machine."""
    processes_of_job: int = Field(default=8192, ge=0, le=4_194_304)
    """Processes of a job at most, threads included, where the driver enforces it; 0: no limit."""
    driver: Literal["auto", "unit", "cgroup", "tree"] = "auto"
    """What limits programs: `unit` (systemd), `cgroup`, `tree` (no limits); `auto`: the best that the machine has."""
    log_keep_days: float = Field(default=30.0, gt=0, le=36_500)
    """Ended attempts and their logs are deleted after so many days."""
    attempts_kept: int = Field(default=1000, ge=1, le=OUTCOMES_KEPT)
    """Ended attempts kept; the oldest ones beyond are deleted."""

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
