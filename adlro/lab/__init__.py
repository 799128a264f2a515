"""The laboratory: learning and evaluation.

It may import all packages; no service imports it. Extras: train, evaluate.
"""
