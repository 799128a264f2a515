"""Shares of users and groups, by which fair share measures GPU time. Plain data; no gRPC, no Redis."""

from __future__ import annotations

from dataclasses import dataclass

GROUP = "@"
"""Before the name of a group, where names of users stand as well."""


@dataclass(frozen=True, slots=True)
class FairShare:
    """The shares of a user, or of a group.

    Attributes:
        account: the user's name, or the group's with `@` before it.
        shares: the GPU time of the account counts divided by them; 1 for whoever has none set.
        group: the group that the user is in, without the `@`; empty: in none, and for groups.
        gpu_s: GPU time that counts for the account now: with a half-life, as decayed. Only in answers.
    """

    account: str
    shares: float = 1.0
    group: str = ""
    gpu_s: float = 0.0
