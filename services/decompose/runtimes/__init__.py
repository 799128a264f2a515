"""Runtimes of jobs on GPU models: predictors, and how well what they said held."""
