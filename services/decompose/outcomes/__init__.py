"""Outcomes of finished jobs: the memory that keeps them, what is like what in it, and its form as a file."""
