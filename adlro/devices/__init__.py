"""The GPUs of this machine, found, sampled and judged, and the machine's cores and memory.

    finding     find_devices: NVIDIA GPUs by NVML, AMD GPUs by the kernel's files; which are left out, and why
    pretended   GPUs that are not there: `--fake-gpus v100_sxm2:2`
    visible     the variables by which a program sees the GPUs that it was given and no others
    watch       DeviceWatch: what the GPUs report each second, read by child processes
    conditions  DeviceJudge: which GPUs can't be used now, and why
    machine     find_machine: cores and memory that this process may use

NVML may hang or crash when a GPU fails. No function here calls it in its own process, but for the two programs that
run as child processes: `python -m adlro.devices.nvidia` and `python -m adlro.devices.sampler`.
"""
