"""Simulates futures from a decision point, compiled, to compare candidate actions. Arrays and numba only.

rule.py          the base policy `hold_greedy` on the simulator's own arrays
candidates.py    the candidate actions of a decision
continuation.py  a cluster copied, an action carried out, the base policy to the end; clairvoyant one-step rollouts
futures.py       imagined futures: a scheduler's present knowledge, and arrivals drawn from its history
gated.py         honest rollouts: another action replaces the base's only for a significant gain over sampled futures
"""
