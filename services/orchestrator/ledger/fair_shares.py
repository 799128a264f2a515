"""The shares and groups of users, as the acting orchestrator knows them. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from adlro.records.fair_share import GROUP, FairShare


@dataclass(frozen=True, slots=True)
class FairShares:
    """By the name of a user, or of a group with `@` before it; who is not there has one share, and no group."""

    of_account: Mapping[str, FairShare] = field(default_factory=dict)

    def account_of(self, user: str) -> str:
        """The user's group with `@` before it, or the user."""
        found = self.of_account.get(user)
        return GROUP + found.group if found is not None and found.group else user

    def of(self, account: str) -> float:
        """The shares of a group or a user."""
        found = self.of_account.get(account)
        return 1.0 if found is None else found.shares

    def __bool__(self) -> bool:
        return bool(self.of_account)


def fair_shares_of(kept: Mapping[bytes, bytes]) -> FairShares:
    """The shares as the store keeps them."""
    known = {}
    for key, text in kept.items():
        account, (shares, _, group) = key.decode(), text.decode().partition(" ")
        known[account] = FairShare(account, float(shares), group)
    return FairShares(known)


def stored(share: FairShare) -> str:
    """A share for the store."""
    return f"{share.shares!r} {share.group}".rstrip()
