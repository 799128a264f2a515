"""When a waiting job is expected to start: futures of the queue, and intervals that keep their word.

`moment.py` is the input, `roll.py` plays one future, `futures.py` draws many of them, `calibration.py` turns their
spread into intervals with a record, `quantiles.py` is the simple forecast beside it. Arrays only.
"""
