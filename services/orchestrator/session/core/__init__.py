"""A session without its surroundings: `Core.step(input, now)` returns effects. No I/O, no clock, no awaits.

`inputs` and `effects` define the data that go in and out; `core` passes each input to the parts `arrivals`, `launches`,
`round` and `reasons`; `state` is the state that the parts share. The caller carries out the effects: the driver of a
session (session.py), an evaluation or a test.
"""
