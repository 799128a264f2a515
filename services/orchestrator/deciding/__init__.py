"""Which policy decides, its checkpoint, its guard and its shadow, and what was decided."""
