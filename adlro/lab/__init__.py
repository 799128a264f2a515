"""The laboratory: learning and evaluation.

It may import everything; nothing that serves imports it. Extras: train, evaluate.
"""
