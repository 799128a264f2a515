"""The server half of ClusterService, for every cluster, and the check whether a cluster keeps the contract.

driver         what an adapter implements, and what it may tell
real_driver    the same for clusters that run programs in real time: what most adapters begin with
cluster_side   the rules: what is launched, stopped, told and remembered
server, serve  ClusterService over gRPC, as a service of the kit
check          `check_cluster`: the conformance suite
"""

from adlro.clusterside.check import ClusterCheckFailed, Report, check_cluster, inspect_cluster

__all__ = ["ClusterCheckFailed", "Report", "check_cluster", "inspect_cluster"]
