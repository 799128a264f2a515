"""simcluster: a simulated GPU cluster behind ClusterService, with a clock that runs real, scaled or virtual."""
