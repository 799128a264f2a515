"""The planes that a network reads, and its file. Arrays only; numpy, numba and ONNX Runtime, no torch.

table.py    every plane: its name, unit, meaning and normalisation
layout.py   the arrays of N decisions
window.py   the waiting jobs that the network scores, compiled
fill.py     observations to planes
figures.py  the planes of one cluster, compiled
choice.py   from a network's answers to actions
session.py  a network in ONNX Runtime
model.py    a network in an ONNX file, with its metadata
"""

import os

# Set before any import of ONNX Runtime, which otherwise sends telemetry, and leaves a file in the temporary folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
