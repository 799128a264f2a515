"""The decompose service: records as discrete variables, the GPU matrix, runtimes learned from finished jobs."""

import os

# Set before numpy's import: matrices of a few hundred rows gain nothing from more threads, and threads that spin while
# they wait take the cores from the other services.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
