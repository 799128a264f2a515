"""The simulator's physics: the courses of one cluster or of thousands at a time, durations, GPU metrics.

numpy, numba, the standard library and ADLRO's plain records only; no clock, no network. The figures in `data/` each
have their source or the word "assumed".
"""
