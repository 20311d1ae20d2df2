"""Which processes use a store, where it tracks them: it learns from the system when one has died."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class ProcessTracking:
    """The part of a store about the processes that have opened it; this one tracks none.

    Attributes:
        instance: identifies this opening of the store among those of other processes; empty if it does not track them.
    """

    instance: bytes = b""

    async def dead_instances(self) -> list[bytes]:
        """Return instances of this store whose processes died without closing it.

        Other processes do not see them until this one calls `forget_instances` or ends; there may be more.
        """
        return []

    async def other_processes(self) -> tuple[int, int] | None:
        """Return how many other processes have this store open, and how many died with it open and still have jobs.

        None if the store does not track processes.
        """
        return None

    async def ended_instances(self, instances: Collection[bytes]) -> set[bytes]:
        """Return those of these instances whose processes have ended, or have closed the store.

        Others find them with `dead_instances` all the same. None where the store does not track processes.
        """
        return set()

    async def forget_instances(self, instances: Sequence[bytes]) -> None:
        """Remove the traces of dead instances: `dead_instances` returns them no more, in any process."""
        assert not instances, "there were none"
