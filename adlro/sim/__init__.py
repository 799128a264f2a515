"""The simulator's physics: speeds, scenario, workload, trace readers, one cluster's course, GPU metrics.

numpy, the standard library and ADLRO's plain records only; no clock, no network. Files are read where a caller
names one; the figures in `data/` each have their source or the word "assumed".
"""
