"""Explanations: why a job waits, and what the next best action was."""
