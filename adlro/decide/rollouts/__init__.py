"""Plays futures from a decision point, compiled: what would come of each candidate action. Arrays and numba only.

rule.py          the base policy `hold_greedy` on the simulator's own arrays
candidates.py    the actions worth trying at a decision
continuation.py  a cluster copied, an action carried out, the base policy to the end; clairvoyant one-step rollouts
futures.py       what a scheduler can imagine: what it knows now, and arrivals drawn from what it has seen
gated.py         honest rollouts: leave the base's choice only where the gain over sampled futures is certain enough
"""
