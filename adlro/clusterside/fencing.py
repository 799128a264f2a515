"""Fencing: only the token of the newest lease is accepted. Plain; callers look up tokens in the store.

A token is accepted if it is the newest known issued one. An older one belongs to an orchestrator that
lost its lease. A newer one is unknown until the store confirms that a lease has it.
"""

from __future__ import annotations

from adlro.errors import Conflict


class Fence:
    """The newest fencing token.

    Attributes:
        newest: the newest known issued token.
    """

    def __init__(self, used: int = 0) -> None:
        self.newest = used
        self.used = used

    def note(self, token: int) -> None:
        """Notes a new lease's token; tokens of older leases are refused from now on."""
        self.newest = max(self.newest, token)

    def check(self, token: int) -> None:
        """Accepts the newest token, and notes its use.

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
        """The newest token that no new lease may have. A token that was looked up but not used is free."""
        return self.newest if self.used == self.newest else self.newest - 1
