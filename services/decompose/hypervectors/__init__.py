"""Hypervectors: their algebra and codes, the index of packed ones, and the similarity that they stand for: arrays."""
