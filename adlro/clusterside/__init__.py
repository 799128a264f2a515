"""The server half of ClusterService, for every cluster, and the check of a cluster against the contract.

driver         the interface of an adapter, and its reports
real_driver    the interface for clusters that run programs in real time: the base of most adapters
cluster_side   the rules of launches, stops, events and stored state
server, serve  ClusterService over gRPC, as a service of the kit
check          `check_cluster`: the conformance suite
"""

from adlro.clusterside.check import ClusterCheckFailed, Report, check_cluster, inspect_cluster

__all__ = ["ClusterCheckFailed", "Report", "check_cluster", "inspect_cluster"]
