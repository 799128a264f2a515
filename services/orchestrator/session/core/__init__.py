"""A session without its surroundings: `Core.step(input, now)` gives the effects. No I/O, no clock, nothing is awaited.

`inputs` is what it is told, `effects` what is to be done; `core` tells the parts what happened; `state` is what the
parts share; `arrivals`, `launches`, `round` and `reasons` are the parts. Whoever drives it does what the effects say:
the driver of a session (session.py), an evaluation, a test.
"""
