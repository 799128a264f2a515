"""What a network sees of a decision, and the file that holds one. Arrays only; numpy, numba and ONNX Runtime, no torch.

table.py    every plane: its name, unit, meaning, and how it is brought to the network's range
layout.py   the arrays of N decisions
window.py   which waiting jobs are looked at, compiled
fill.py     observations to planes
figures.py  the same of one cluster, compiled
choice.py   what a network says to actions
session.py  a network in ONNX Runtime
model.py    a network in an ONNX file, and what the file says of itself
"""

import os

# Before ONNX Runtime is imported anywhere: else it reports to its makers, and leaves a file in the temporary folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
