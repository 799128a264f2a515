"""What decides: the hold rule, policies, the planes that networks see, rollouts.

Arrays only: no time, no threads, no I/O.
"""
