"""What this machine gives the programs of an attempt: user, GPUs' variables and ranks, limits, secrets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adlro.attempt.drivers import ALL_LIMITS
from adlro.attempt.records import JOB_DIR_INSIDE, Launch, Limits
from adlro.attempt.users import UnixUsers
from adlro.clusterside.attempts import Attempt
from adlro.devices.records import Vendor
from adlro.devices.visible import visible_environment
from adlro.errors import InvalidInput
from adlro.records.jobs import ArrayTask, JobSpec
from adlro.records.payloads import LaunchStyle, Payload
from adlro.services.local.gpus import Slot
from adlro.services.local.job_dirs import JobDirs
from adlro.services.local.notes import CONTAINER, PROCESS

# All nodes are this machine.
_MASTER_ADDRESS = "127.0.0.1"
# Networks of an engine in which containers do not find each other by name.
_NAMELESS_NETWORKS = frozenset(("bridge", "none"))
# torchrun reads these in place of its options, so that one line in a job's command suits any placement.
_TORCHRUN = "PET_"


@dataclass(frozen=True, slots=True)
class Program:
    """One program of an attempt.

    Attributes:
        gpu_ids: its own GPUs, whose cores and memory it has.
        node_gpu_ids: the GPUs of the attempt on its node, which it sees: ranks of a node use each other's.
        node_rank: its node among those of the attempt.
        local_rank: its place among the programs of its node.
    """

    gpu_ids: tuple[str, ...]
    node_gpu_ids: tuple[str, ...]
    node_rank: int
    local_rank: int


def programs_of(gpu_ids: Sequence[str], node_of: Mapping[str, str], style: LaunchStyle) -> tuple[Program, ...]:
    """The programs of an attempt, by rank.

    Args:
        gpu_ids: of its placement, in the order of ranks.
        node_of: the nodes of GPUs.
        style: one program on each node, or one for each GPU.
    """
    on_node: dict[str, list[str]] = {}
    for each in gpu_ids:
        on_node.setdefault(node_of[each], []).append(each)
    if style is not LaunchStyle.ONE_PER_GPU:
        return tuple(Program(tuple(own), tuple(own), number, 0) for number, own in enumerate(on_node.values()))
    node_rank = {node_id: number for number, node_id in enumerate(on_node)}
    return tuple(
        Program((each,), tuple(on_node[node_of[each]]), node_rank[node_of[each]], on_node[node_of[each]].index(each))
        for each in gpu_ids
    )


class Launches:
    """Makes launches of attempts.

    Args:
        slots: the GPUs, by id.
        missing: why this machine can't run attempts of a kind now; it may change.
        enforced: the limits that hold for processes.
        users: the Unix users.
        job_dirs: the directories of jobs.
        secrets_dir: of the files with secrets; empty: there are none.
        most_processes: of one program, threads included; 0: no limit.
        container_network: that containers are in.
    """

    def __init__(
        self,
        slots: Mapping[str, Slot],
        missing: Mapping[str, str],
        enforced: Collection[str],
        users: UnixUsers,
        job_dirs: JobDirs,
        secrets_dir: str,
        most_processes: int = 0,
        container_network: str = "bridge",
    ) -> None:
        self._slots = slots
        self._missing = missing
        self._enforced = enforced
        self._users = users
        self._job_dirs = job_dirs
        self._secrets_dir = secrets_dir
        self._most_processes = most_processes or None
        self._container_network = container_network
        self._node_of = {each.gpu_id: each.node_id for each in slots.values()}

    def programs_of(self, attempt: Attempt) -> tuple[Program, ...]:
        """The programs of an attempt, by rank.

        Raises:
            InvalidInput: the job has none.
        """
        return programs_of(attempt.placement.gpu_ids, self._node_of, _payload_of(attempt).launch_style)

    def launches_of(self, attempt: Attempt, names: Sequence[str], port: int, gate: str, job_dir: str) -> list[Launch]:
        """What its node gives each program of an attempt, by rank.

        Args:
            attempt: it.
            names: of the programs' folders.
            port: at which they meet.
            gate: for which they wait before they begin; not used where there is one program.
            job_dir: the name of the job's directory, which is made.

        Raises:
            InvalidInput: the job can't run here.
            Unavailable, OSError: it can't now.
        """
        programs = self.programs_of(attempt)
        kind = kind_of(attempt)
        alone = len(programs) == 1
        if kind == CONTAINER and not alone and self._container_network in _NAMELESS_NETWORKS:
            raise InvalidInput(
                f"the {len(programs)} containers of this job could not reach each other in this node's container "
                f"network '{self._container_network}': ask for one node and one program a node (torchrun), or have "
                "the operator name a network of the engine in ADLRO_LOCAL_CONTAINER_NETWORK (docker network create)",
                field="job.payload.launch_style",
                reason="NO_CONTAINER_NETWORK",
            )
        by_name = kind == CONTAINER and not alone and self._container_network != "host"
        address = names[0] if by_name else _MASTER_ADDRESS
        assert attempt.spec is not None
        path = self._job_dirs.make(job_dir, self._users.unix_user(attempt.spec.user))
        return [
            replace(
                self._launch_of(attempt, kind, each, _ranks(attempt, programs, rank, address, port), path),
                gate="" if alone else gate,
                network_name=names[rank] if by_name else "",
            )
            for rank, each in enumerate(programs)
        ]

    def _launch_of(
        self, attempt: Attempt, kind: str, program: Program, ranks: Mapping[str, str], job_dir: str
    ) -> Launch:
        spec, payload = attempt.spec, _payload_of(attempt)
        assert spec is not None
        if kind in self._missing:
            raise InvalidInput(
                f"this node runs no {kind} jobs: {self._missing[kind]}",
                field=f"job.payload.{kind}",
                reason="NO_CONTAINERS",
            )
        slots = [self._slots[gpu_id] for gpu_id in program.node_gpu_ids]
        devices = [each.device for each in slots]
        environment = {
            "ADLRO_JOB_ID": attempt.job_id,
            "ADLRO_ATTEMPT": str(attempt.attempt),
            "ADLRO_GPU_IDS": ",".join(program.node_gpu_ids),
            "ADLRO_NODE": slots[0].node_id,
            "ADLRO_JOB_DIR": JOB_DIR_INSIDE if kind == CONTAINER else job_dir,
            **({"ADLRO_RESUMED": "1"} if attempt.resumes else {}),
            **_array_environment(spec.array),
            **visible_environment(devices, {each.device.vendor for each in self._slots.values()}),
            # Unlike the others, these are the user's where the job sets them.
            **{name: value for name, value in ranks.items() if name not in payload.environment},
        }
        device_files = [path for each in devices for path in each.device_files]
        return Launch(
            payload,
            self._users.unix_user(spec.user),
            spec.time_limit_s,
            self._limits(spec, kind, device_files, len(program.gpu_ids)),
            environment,
            self._secrets(spec.user, payload.secret_names),
            gpu_uuids=tuple(each.uuid for each in devices if each.vendor is Vendor.NVIDIA),
            device_files=tuple(
                path for each in devices if each.vendor is Vendor.AMD for path in dict.fromkeys(each.device_files)
            ),
            job_dir=job_dir,
        )

    def _limits(self, spec: JobSpec, kind: str, device_files: Sequence[str], gpu_count: int) -> Limits:
        """Those that hold on this machine. Of a container the engine enforces them, and it has its GPUs alone."""
        memory_mib, cpu_cores = spec.memory_mib * gpu_count, spec.cpu_cores * gpu_count
        enforced = ALL_LIMITS - {"devices"} if kind == CONTAINER else self._enforced
        return Limits(
            memory_mib=memory_mib if "memory_mib" in enforced and memory_mib > 0 else None,
            cpu_cores=float(cpu_cores) if "cpu_cores" in enforced and cpu_cores > 0 else None,
            processes=self._most_processes if "processes" in enforced else None,
            # Pretended GPUs have no files, so there is nothing to keep others from.
            devices=tuple(dict.fromkeys(device_files)) if "devices" in enforced and device_files else None,
        )

    def _secrets(self, user: str, names: Sequence[str]) -> dict[str, str]:
        if not names:
            return {}
        if not user or user in (".", "..") or "/" in user:
            raise InvalidInput(
                f"user '{user}' can have no secrets: the name is no file's name", field="job.payload.secret_names"
            )
        if not self._secrets_dir:
            raise InvalidInput(
                f"this node has no secret '{names[0]}' for user {user}: its operator names a directory in "
                f"ADLRO_LOCAL_SECRETS_DIR, and puts the value into its file {user}/{names[0]}, mode 0600",
                field="job.payload.secret_names",
            )
        return {each: str(Path(self._secrets_dir, user, each)) for each in names}


def kind_of(attempt: Attempt) -> str:
    """PROCESS or CONTAINER.

    Raises:
        InvalidInput: the job has no program.
    """
    return CONTAINER if _payload_of(attempt).container is not None else PROCESS


def _array_environment(array: ArrayTask | None) -> dict[str, str]:
    """The place of a job in its array, for its program."""
    if array is None:
        return {}
    return {
        "ADLRO_ARRAY_ID": array.array_id,
        "ADLRO_ARRAY_INDEX": str(array.index),
        "ADLRO_ARRAY_COUNT": str(array.count),
    }


def _payload_of(attempt: Attempt) -> Payload:
    payload = None if attempt.spec is None else attempt.spec.payload
    if payload is None:
        raise InvalidInput(
            "this job has no program: submit it with a command (adlro submit ... -- python train.py)",
            field="job.payload",
        )
    return payload


def _ranks(attempt: Attempt, programs: Sequence[Program], rank: int, address: str, port: int) -> dict[str, str]:
    """Variables by which the programs of an attempt find each other."""
    program = programs[rank]
    nodes = {
        "NNODES": len({each.node_rank for each in programs}),
        "NODE_RANK": program.node_rank,
        "NPROC_PER_NODE": len(program.node_gpu_ids),
    }
    meeting = {"MASTER_ADDR": address, "MASTER_PORT": port}
    found: dict[str, object] = {**nodes, **meeting}
    if _payload_of(attempt).launch_style is LaunchStyle.ONE_PER_GPU:
        found |= {
            "RANK": rank,
            "WORLD_SIZE": len(programs),
            "LOCAL_RANK": program.local_rank,
            "LOCAL_WORLD_SIZE": len(program.node_gpu_ids),
        }
    elif len(attempt.placement.gpus) > 1:
        # On one node it finds a port by itself.
        more = nodes | (meeting if nodes["NNODES"] > 1 else {})
        found |= {f"{_TORCHRUN}{name}": value for name, value in more.items()}
    return {name: str(value) for name, value in found.items()}
