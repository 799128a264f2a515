"""Clusters as they are known: the matrix of all GPUs, and the same as one hypervector."""
