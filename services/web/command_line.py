"""The command that submits a job as the page does: `adlro submit --cores 4 ...`. Pure functions."""

from __future__ import annotations

import shlex

from adlro.records.dependencies import CONDITION_WORDS
from adlro.records.jobs import JobSpec, JobType
from adlro.records.payloads import Payload

_DEFAULT_MEMORY_MIB_A_CORE = 4096
_DEFAULTS = Payload()


def command_line(spec: JobSpec) -> str:
    """The command for a job, with the options that differ from their defaults."""
    words = ["adlro", "submit"]
    if spec.job_type is not JobType.UNSPECIFIED:
        words += ["--type", spec.job_type.name.lower()]
    words += ["--name", spec.name, "--user", spec.user]
    if spec.application:
        words += ["--application", spec.application]
    words += ["--priority", f"{spec.priority:g}"] if spec.priority != 0.5 else []
    for key, value in spec.labels.items():
        words += ["--label", f"{key}={value}"]
    words += _needs(spec)
    if spec.expected_runtime is not None:
        words += ["--runtime", f"{spec.expected_runtime.runtime_s:g}", "--on", spec.expected_runtime.gpu_model]
    if spec.preemptible is not None:
        words.append("--preemptible")
        words += ["--restart", f"{spec.preemptible.restart_s:g}"] if spec.preemptible.restart_s else []
        words += ["--lost", f"{spec.preemptible.lost_s:g}"] if spec.preemptible.lost_s else []
        words += [] if spec.preemptible.grace_s is None else ["--preempt-grace", f"{spec.preemptible.grace_s:g}"]
    if spec.shareable:
        words.append("--shareable")
    if spec.payload is not None:
        words += _program(spec.payload)
    return shlex.join(words)


def _needs(spec: JobSpec) -> list[str]:
    words = ["--gpus", str(spec.gpu_count)] if spec.gpu_count != 1 else []
    words += ["--max-nodes", str(spec.max_node_count)] if spec.max_node_count else []
    for model in spec.gpu_models:
        words += ["--gpu-model", model]
    words += ["--exclusive"] if spec.exclusive else []
    words += ["--exclude", ",".join(spec.excluded_node_ids)] if spec.excluded_node_ids else []
    words += ["--nodelist", ",".join(spec.node_ids)] if spec.node_ids else []
    words += ["--cores", str(spec.cpu_cores)] if spec.cpu_cores != 1 else []
    if spec.memory_mib != _DEFAULT_MEMORY_MIB_A_CORE * max(spec.cpu_cores, 1):
        words += ["--memory", f"{spec.memory_mib}MiB"]
    words += ["--gpu-memory", f"{spec.gpu_memory_mib}MiB"] if spec.gpu_memory_mib else []
    words += ["--time-limit", f"{spec.time_limit_s:g}"] if spec.time_limit_s is not None else []
    words += ["--begin", f"{spec.begin_time_s:g}"] if spec.begin_time_s is not None else []
    for each in spec.after:
        words += ["--after", f"{each.job_id}:{CONDITION_WORDS[each.condition]}"]
    words += ["--hold"] if spec.held else []
    return words


def _program(payload: Payload) -> list[str]:
    """A program's words. Values of variables are its owner's own affair: their names must do."""
    words = []
    program = payload.process or payload.container
    if payload.container is not None:
        words += ["--image", payload.container.image]
        for mount in payload.container.mounts:
            words += ["--mount", f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}"]
    if program is not None and program.workdir:
        words += ["--workdir", program.workdir]
    for name in payload.environment:
        words += ["--env", name]
    for name in payload.secret_names:
        words += ["--secret", name]
    words += ["--stop-grace", f"{payload.stop_grace_s:g}"] if payload.stop_grace_s != _DEFAULTS.stop_grace_s else []
    words += ["--log-limit", f"{payload.log_limit_mib}MiB"] if payload.log_limit_mib != _DEFAULTS.log_limit_mib else []
    return [*words, "--", *payload.argv] if payload.argv else words
