"""A service's operations on types: timeouts, pausing, retention, redaction, and the state of a type's queue."""

from __future__ import annotations

from collections.abc import Iterable

from jobs_service.arguments import check_keep, check_seconds
from jobs_service.durations import Duration
from jobs_service.layer import activity, inspection, redactions
from jobs_service.layer.inspection import QueueState
from jobs_service.model import JobType
from jobs_service.model.terms import exact_type
from jobs_service.model.type_state import Retention
from jobs_service.redaction import Redaction
from jobs_service.service.store_access import StoreAccess
from jobs_service.service.tree import ServiceTree
from jobs_service.store.base import Transaction


class TypeOperations:
    """The part of JobsService about types."""

    _access: StoreAccess
    _tree: ServiceTree

    async def set_type_timeout(self, type: JobType, seconds: Duration) -> None:
        """Create a type, or change its activity timeout: how long its running jobs may stay silent.

        Args:
            type: str, bytes, int, or a tuple of these.
            seconds: a duration > 0.

        Raises:
            InvalidJob: an invalid type or duration.
            StoreError: the store failed.
        """
        keys = self._access.keys(type)
        checked = check_seconds(seconds)
        await self._access.transact(lambda unit: activity.set_type_timeout(unit, keys, checked))
        self._tree.timeout_changed(keys)

    async def get_type_timeout(self, type: JobType) -> float:
        """Return a type's activity timeout in seconds.

        Raises:
            NoTypeTimeout: the type does not exist.
        """
        keys = self._access.keys(type)
        return await self._access.read(lambda transaction: activity.type_timeout(transaction, keys))

    async def clear_type_timeout(self, type: JobType) -> None:
        """Remove a type: its jobs stay, but no new ones can be added. A missing type is no error."""
        keys = self._access.keys(type)
        await self._access.transact(lambda unit: activity.clear_type_timeout(unit, keys))
        self._tree.forget(keys.type)
        self._tree.timeout_changed(keys)

    async def pause(self, type: JobType) -> None:
        """Stop accepting jobs of a type, in all processes, until `resume`; running jobs go on.

        Raises:
            InvalidJob: an invalid type.
            StoreError: the store failed.
        """
        keys = self._access.keys(type)
        await self._access.transact(lambda unit: activity.pause(unit, keys))

    async def resume(self, type: JobType) -> None:
        """Accept jobs of a type again; a type that is not paused is no error. Raises like `pause`."""
        keys = self._access.keys(type)
        await self._access.transact(lambda unit: activity.resume(unit, keys))

    async def paused(self, type: JobType) -> bool:
        """Return whether a type is paused."""
        keys = self._access.keys(type)
        return await self._access.read(lambda transaction: activity.is_paused(transaction, keys))

    async def set_retention(
        self, type: JobType, *, keep: Duration | None = None, keep_failed: Duration | None = None
    ) -> None:
        """Set the time after which finished jobs of a type are removed; it applies to jobs that finish from now on.

        Each call sets both times: an omitted one becomes "for ever", whatever its earlier value.

        Args:
            type: of the jobs.
            keep: how long to keep jobs that succeeded or were canceled; None for ever.
            keep_failed: how long to keep jobs that failed; None for ever.

        Raises:
            InvalidJob: an invalid type or duration.
            StoreError: the store failed.
        """
        keys = self._access.keys(type)
        retention = Retention(check_keep("keep", keep), check_keep("keep_failed", keep_failed))
        await self._access.transact(lambda unit: activity.set_retention(unit, keys, retention))

    async def get_retention(self, type: JobType) -> Retention:
        """Return how long finished jobs of a type are kept: `keep` and `keep_failed`, seconds; None for ever."""
        keys = self._access.keys(type)
        return await self._access.read(lambda transaction: inspection.retention(transaction, keys))

    async def set_redaction(self, type: JobType, paths: Iterable[str]) -> None:
        """Set the secret fields of a type's jobs, which all displays for people hide.

        Programs that read jobs with this class see them unredacted.

        Args:
            type: of the jobs.
            paths: such as "card.number", "*.token", "error:message"; none for no secrets. See Redaction.

        Raises:
            InvalidSettings: an invalid path.
            InvalidJob: an invalid type.
            StoreError: the store failed.
        """
        keys = self._access.keys(type)
        wanted = Redaction(paths)
        await self._access.transact(lambda unit: redactions.set_redaction(unit, keys, wanted))

    async def get_redaction(self, type: JobType) -> Redaction:
        """Return the secret fields of a type's jobs; read them after the jobs that are to be shown."""
        keys = self._access.keys(type)
        return await self._access.read(lambda transaction: redactions.redaction(transaction, keys))

    async def redactions(self) -> dict[JobType, Redaction]:
        """Return the types whose jobs have secret fields, with these fields."""
        keyspace = self._access.keyspace
        found: dict[JobType, Redaction] = {}
        after: bytes | None = None
        while True:

            async def read(
                transaction: Transaction, after: bytes | None = after
            ) -> tuple[list[tuple[JobType, Redaction]], bytes | None]:
                return await redactions.redactions_page(transaction, keyspace, after)

            page, after = await self._access.read(read)
            found |= {exact_type(type): rules for type, rules in page}
            if after is None:
                return found

    async def queue_state(self, type: JobType) -> QueueState:
        """Return the state of a type's queue, at a cost independent of the number of jobs.

        Returns:
            The job that has been ready for longest (`id`, `ready_since`), when the first scheduled job is due
            (`next_scheduled`), and whether the type is `paused`; times in seconds since the epoch, None if there is no
            such job. A job whose record does not tell when it became ready (no room, or a damaged history) is named
            only if no record does.
        """
        keys = self._access.keys(type)
        return await self._access.read(lambda transaction: inspection.queue_state(transaction, keys))

    async def last_ticks(self) -> dict[JobType, float]:
        """Return the time of each periodic type's last tick, seconds since the epoch.

        For a type without a tick it is the time of its handler's first run.
        """
        keyspace = self._access.keyspace
        found = await self._access.read(lambda transaction: inspection.last_ticks(transaction, keyspace))
        return dict(found)

    async def types(self) -> list[JobType]:
        """Return the types that exist, in the tuple layer's order; many types are read in several transactions."""
        keyspace = self._access.keyspace
        found: list[JobType] = []
        after: bytes | None = None
        while True:

            async def read(transaction: Transaction, after: bytes | None = after) -> tuple[list[JobType], bytes | None]:
                return await activity.types_page(transaction, keyspace, after)

            page, after = await self._access.read(read)
            found += page
            if after is None:
                return found
