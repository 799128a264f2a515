"""Explanations: the reason of a job's wait, and the next best action."""
