"""Outcomes of finished jobs: the memory that stores them, its similarity search, and its file format."""
