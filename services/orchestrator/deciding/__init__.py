"""The acting policy, its checkpoint, its guard and its shadow, and the log of decisions."""
