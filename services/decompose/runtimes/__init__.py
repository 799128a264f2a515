"""Runtimes of jobs on GPU models: predictors, and the accuracy of their predictions."""
