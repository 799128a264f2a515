"""The choice of the cluster: simulated, by option or environment, or this machine; checked before any start."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli.shell import say
from adlro.errors import InvalidInput

if TYPE_CHECKING:
    from adlro.records.cluster import Cluster

SETTING = "ADLRO_SIMCLUSTER_CLUSTER"
DEFAULT = "paper"
NAMES = ("paper", "paper_roomy", "gavel")
LOCAL = "local"
"""This machine: `adlro up --cluster local` runs programs on it."""
LOCAL_MODULE = "adlro.services.local"
RESERVED = ("slurm", "ray")
"""Names of clusters that are not supported yet; a file of such a name is `./slurm`."""

FAKE_GPUS_ENV, USERS_MAP_ENV, DATA_DIR_ENV = "ADLRO_LOCAL_FAKE_GPUS", "ADLRO_LOCAL_USERS_MAP", "ADLRO_LOCAL_DATA_DIR"
_DEV = Path("/dev")

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME|FILE",
        help="The cluster to simulate: paper (16 GPUs, 20 cores a node), paper_roomy (32 cores), gavel (24 GPUs of"
        f" three other models), or a TOML file (docs/workloads.md). Default: ${SETTING}, else {DEFAULT}.",
        show_default=False,
    ),
]
UpClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME|FILE|local",
        help="local: run programs, on this machine's GPUs. Otherwise the cluster to simulate: paper (16 GPUs, 20 cores"
        " a node), paper_roomy (32 cores), gavel (24 GPUs of three other models), that of another scenario such as"
        " gangs_64, or a TOML file (docs/workloads.md)."
        f" Default: ${SETTING}, else {DEFAULT}.",
        show_default=False,
    ),
]
FakeGpusOption = Annotated[
    str | None,
    typer.Option(
        "--fake-gpus",
        metavar="SPEC",
        help="With --cluster local: pretended GPUs for real programs, such as v100_sxm2:2,rtx_2080_ti:2, or by node:"
        " a=v100_sxm2:2,b=rtx_2080_ti:2.",
        show_default=False,
    ),
]
UsersMapOption = Annotated[
    Path | None,
    typer.Option(
        "--users-map",
        metavar="FILE",
        help="With --cluster local, as root: as which user of this machine the programs of each submitting user run; "
        "lines such as 'ada ada', '* *', '* root' (docs/own_machine.md).",
        show_default=False,
    ),
]
ScenarioOption = Annotated[
    str | None, typer.Option("--scenario", hidden=True, help="Deprecated: --cluster.", show_default=False)
]

# Keys of the file that differ from the contracts' names.
_FILE_KEYS = {"node_id": "name", "gpu_id": "name", "memory_mib": "gpu_memory_mib"}


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """The options of a cluster that is this machine.

    Attributes:
        settings: environment for its service.
        other_users: programs run as other users of this machine, also as others than root.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    other_users: bool = False


def local_cluster(
    cluster: str | None,
    fake_gpus: str | None,
    users_map: Path | None,
    refused: Mapping[str, object],
    words: Sequence[str] = (),
) -> LocalCluster | None:
    """The cluster of `--cluster local`; None: another one is chosen.

    Args:
        cluster: value of --cluster.
        fake_gpus: value of --fake-gpus.
        users_map: value of --users-map.
        refused: by name, the values of options for simulated clusters.
        words: all options of the command line, for a command that is proposed.

    Raises:
        InvalidInput: options that do not belong together; a users' map that is not there, or wrong; none for root.
            Names the option.
    """
    if cluster != LOCAL:
        for option, value in (("--fake-gpus", fake_gpus), ("--users-map", users_map)):
            if value is not None:
                raise InvalidInput(
                    f"{option} belongs to --cluster {LOCAL}, which runs programs on this machine; add it, or leave out "
                    f"{option}",
                    field=option,
                )
        return None
    for option, given in refused.items():
        if given is not None:
            raise InvalidInput(
                f"{option}: belongs to simulated clusters; --cluster {LOCAL} runs programs in real time", field=option
            )
    settings = {}
    if fake_gpus is not None:
        settings[FAKE_GPUS_ENV] = fake_gpus
    option, path = "--users-map", users_map
    if path is None and os.environ.get(USERS_MAP_ENV):
        option, path = USERS_MAP_ENV, Path(os.environ[USERS_MAP_ENV])
    if path is None:
        if os.geteuid() == 0:
            raise InvalidInput(_no_users_map(words), field=option, reason="NO_USERS_MAP")
        return LocalCluster(settings)
    if not path.is_file():
        raise InvalidInput(f"{option}: there is no file {path}", field=option)
    from adlro.attempt.users import UnixUsers

    settings[USERS_MAP_ENV] = str(path.absolute())
    return LocalCluster(settings, not UnixUsers(str(path), key=option).root_alone)


def _no_users_map(words: Sequence[str]) -> str:
    return (
        "you are root, so --users-map must name a file that says as which Unix user each user's programs run. On a "
        "machine or container of your own, programs may run as root: echo '* root' > users.map && "
        f"adlro up {shlex.join(words)} --users-map users.map. Elsewhere, give it lines such as 'ada ada', or '* *' "
        "(the Unix user of the same name); or run adlro up as another user"
    )


def has_gpus() -> bool:
    """Whether this machine seems to have GPUs that can run programs: the files of their drivers are there."""
    try:
        names = os.listdir(_DEV)
    except OSError:
        return False
    return any(name == "kfd" or re.fullmatch(r"nvidia\d+", name) for name in names)


def check_passable(directory: Path) -> None:
    """Checks that other users of this machine may pass through all directories above one.

    Args:
        directory: absolute; need not exist.

    Raises:
        InvalidInput: one of them is closed to others; names it.
    """
    for each in directory.parents:
        if each.is_dir() and not each.stat().st_mode & 0o001:
            raise InvalidInput(
                f"--users-map: programs of other users could not reach their files below {directory}: {each} is closed "
                "to them; name a --data-dir elsewhere, such as /var/lib/adlro",
                field="--users-map",
            )


def chosen_cluster(cluster: str | None, scenario: str | None = None) -> str:
    """The cluster for simcluster: a name, or the absolute path of a file. Warns of the deprecated option.

    Args:
        cluster: value of --cluster.
        scenario: value of --scenario.

    Raises:
        InvalidInput: both options, a reserved name, no such name or file, or a file with a cluster that the services
            refuse; names option, file and field.
    """
    if scenario is not None:
        if cluster is not None:
            raise InvalidInput("--scenario is the former name of --cluster; leave it out", field="--scenario")
        say("[yellow]--scenario is deprecated: write --cluster[/]")
    option = "--cluster" if cluster is not None else "--scenario" if scenario is not None else SETTING
    named = cluster if cluster is not None else scenario if scenario is not None else os.environ.get(SETTING) or None
    if named is None:
        return DEFAULT
    if named == LOCAL:
        raise InvalidInput(
            f"{option}: {named!r} is no simulated cluster: `adlro up --cluster local` runs programs on this machine",
            field=option,
        )
    if named in RESERVED:
        raise InvalidInput(
            f"{option}: {named!r} is kept for clusters that are not simulated, which are not supported yet; name "
            f"one of {', '.join(NAMES)}, or a TOML file (one of that name: ./{named})",
            field=option,
        )
    from adlro.workload.scenario import SCENARIO_NAMES, load_cluster

    if named in SCENARIO_NAMES:
        return named
    if not Path(named).is_file():
        raise InvalidInput(
            f"{option}: {named!r} is neither a cluster's name ({', '.join(NAMES)}) nor a file", field=option
        )
    _check_file(named, load_cluster(named))
    return str(Path(named).absolute())


def _check_file(path: str, cluster: Cluster) -> None:
    """Raises InvalidInput if ingest would refuse the cluster of a file."""
    from adlro.client.clusters import check_cluster
    from adlro.hardware.specs import known_models_text, known_spec

    try:
        check_cluster(cluster)
    except InvalidInput as error:
        told = dict.fromkeys(f"{path}: {_file_key(each.field)}: {each.description}" for each in error.violations)
        raise InvalidInput("; ".join(told), violations=error.violations) from None
    for number, node in enumerate(cluster.nodes):
        for gpu in node.gpus:
            if known_spec(gpu) is None:
                field = f"nodes[{number}].gpu_model"
                raise InvalidInput(
                    f"{path}: {field}: no figures of {gpu.gpu_model!r} are known, by which telemetry is normalised; "
                    "add memory_bandwidth_gb_per_s, power_limit_w and max_temperature_c to the node, or use one of "
                    f"{known_models_text(gpu.gpu_model)}",
                    field=field,
                )


def _file_key(field: str) -> str:
    """`cluster.nodes[0].gpus[1].memory_mib` of the contracts as the file's key: `nodes[0].gpu_memory_mib`."""
    *above, key = field.removeprefix("cluster.").split(".")
    if key == "node_id" or any(each.startswith("gpus[") for each in above):
        key = _FILE_KEYS.get(key, key)
    return ".".join([*(each for each in above if each != "spec" and not each.startswith("gpus[")), key])
