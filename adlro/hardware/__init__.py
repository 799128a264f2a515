"""Facts about hardware: GPU models, their figures and measured speeds, clusters from files.

Each figure in `data/` has its source.
"""
