"""The processes of a store, if it tracks them: the system reports their deaths."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class ProcessTracking:
    """The part of a store about its processes; this default tracks none.

    Attributes:
        instance: id of this opening of the store among other processes' openings; empty without tracking.
    """

    instance: bytes = b""

    async def dead_instances(self) -> list[bytes]:
        """Return instances of this store whose processes died without closing it.

        Other processes do not see them until this one calls `forget_instances` or ends; there may be more.
        """
        return []

    async def other_processes(self) -> tuple[int, int] | None:
        """Return the number of other processes with this store open, and of dead ones that have not been forgotten.

        None if the store does not track processes.
        """
        return None

    async def ended_instances(self, instances: Collection[bytes]) -> set[bytes]:
        """Return the instances among these whose processes have ended, or have closed the store.

        They stay visible to `dead_instances` of other processes. The set is empty if the store does not track
        processes.
        """
        return set()

    async def forget_instances(self, instances: Sequence[bytes]) -> None:
        """Remove the traces of dead instances: no `dead_instances` of any process returns them again."""
        assert not instances, "there were none"
