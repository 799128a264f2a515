"""The ledger: placements, the queue, and their records. Plain data and arrays."""
