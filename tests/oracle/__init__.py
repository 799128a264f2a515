"""A second simulator of clusters, written from the meaning of jobs and machines alone: the standard library only.

It shares no code with the simulator that it judges, is slow, and is meant to be read. `cluster` has the physics,
`placements` says on which GPUs a job fits and from when, `rules` decides, `instances` draws.
"""
