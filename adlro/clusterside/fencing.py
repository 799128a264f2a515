"""Fencing: of all leases that were given only the newest one's token is taken. Plain; whoever asks looks tokens up.

A token is taken where it is the newest that is known to have been given. An older one belongs to an orchestrator that
lost its lease. A newer one is unknown until the store has said that a lease was given with it.
"""

from __future__ import annotations

from adlro.errors import Conflict


class Fence:
    """The newest fencing token.

    Attributes:
        newest: the newest that is known to have been given.
    """

    def __init__(self, used: int = 0) -> None:
        self.newest = used
        self.used = used

    def note(self, token: int) -> None:
        """A lease has been given with this token; those of older leases are refused from now on."""
        self.newest = max(self.newest, token)

    def check(self, token: int) -> None:
        """Takes the newest token, and notes that it was used.

        Raises:
            Conflict: STALE_FENCING_TOKEN, UNKNOWN_FENCING_TOKEN.
        """
        if token < self.newest:
            raise Conflict(
                f"fencing token {token} is older than {self.newest}, which was issued since: another orchestrator has "
                "taken over",
                reason="STALE_FENCING_TOKEN",
                metadata={"fencing_token": str(self.newest)},
            )
        if token > self.newest:
            raise Conflict(
                f"fencing token {token} was issued by no lease: the newest is {self.newest}; acquire the lease, and "
                "use its token",
                reason="UNKNOWN_FENCING_TOKEN",
                metadata={"fencing_token": str(self.newest)},
            )
        self.used = token

    @property
    def spent(self) -> int:
        """The newest that no new lease may have. One that was looked up and never used is free for its lease."""
        return self.newest if self.used == self.newest else self.newest - 1
