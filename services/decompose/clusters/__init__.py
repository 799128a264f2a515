"""The state of clusters: the matrix of all GPUs, and the same as one hypervector."""
