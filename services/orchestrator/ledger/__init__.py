"""The ledger: what was placed where, what waits, and the records that say so. Plain data and arrays."""
