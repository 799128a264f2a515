"""Clusters and jobs at a moment as arrays, and what a policy sees of them: shared by the services and the simulator."""
