"""Arithmetic and draws that give the same bits on every processor, in Python and compiled. numpy and numba only."""
