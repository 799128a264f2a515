"""Descriptions of clusters, as people write them in files."""

from __future__ import annotations

LAB = """
name = "lab"

[[nodes]]
name = "box-0"
gpu_model = "v100_sxm2"
gpus = 2
gpu_memory_mib = 16160
cpu_cores = 12
memory_mib = 65536
"""
