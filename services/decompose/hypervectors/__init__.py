"""Hypervectors: their algebra and codes, the index of packed ones, and their similarity kernel: arrays."""
