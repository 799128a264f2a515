"""Decisions: the hold rule, the policies, the planes of networks, rollouts.

Arrays only: no time, no threads, no I/O.
"""
