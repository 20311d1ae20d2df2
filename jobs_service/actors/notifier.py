"""The notifier of one type: reads the jobs that have changed, and sends events to their subscribers.

Two messages make it read: the type had activity (from its type monitor), and there are new subscriptions (from the
hub). It reads the changes since its last read (see `layer/changes.py`), and the records of changed jobs with
subscribers. At first, when it is too far behind, and while few jobs are subscribed, it reads the records of all
subscribed jobs. A job without retention has no record after its end. So for a type with such jobs the notifier follows
the type's changes, however few jobs are subscribed, and reads their last records (see `layer/changes.py`).

It does one read at a time, so that no subscriber gets an older event after a newer one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Container
from typing import Final, NamedTuple, TypeAlias, TypeVar

from jobs_service import json_data, run_data
from jobs_service.actors.context import Context, log
from jobs_service.actors.subscriptions import Hub, SubscribedJob
from jobs_service.durations import rest_after
from jobs_service.errors import JobNotFound, RecordDamaged, StoreError, job_name
from jobs_service.layer import changes
from jobs_service.layer.batch_bounds import Batch, Pace, too_much_for
from jobs_service.layer.changes import ChangedJobs, Position
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import Record
from jobs_service.model import JobEvent, JobState, next_run
from jobs_service.model.type_state import FOR_EVER, Retention
from jobs_service.store.base import Transaction, Watch
from jobs_service.supervision import Actor

T = TypeVar("T")

_SHORTEST_REST: Final = 0.002
"""Rests of the notifier below so many seconds are skipped: the loop's timers are no finer than a millisecond."""

_READ: Final = "read"
_FEW: Final = 8
"""Up to so many subscribed jobs are simply read each time. That costs less than reading their changes (0.1 of 0.4 ms
from a finish to its event on the embedded store), and spares the rows of changes."""

_CHANGES_PAGE: Final = 1000
_FIRST_BATCH: Final = 100
_LARGEST_READ: Final = 4_000_000
"""Approximate bytes of records per read."""

_SEEN_FOR: Final = 10.0
"""Seconds that rows of changes stay in the store for the slower notifiers of other services."""


# Activity of the type


class TypeMonitor:
    """Waits for activity of one type, and wakes its notifier, at most once per holdoff.

    It is a loop that the notifier runs in a task linked to itself.

    Args:
        context: the service's.
        keys: of the type.
        notify: wakes the notifier.
        rested: waits for the end of the notifier's read; returns the end of its rest in seconds of the loop's clock.
    """

    def __init__(
        self, context: Context, keys: TypeKeys, notify: Callable[[], None], rested: Callable[[], Awaitable[float]]
    ) -> None:
        self._context = context
        self._keys = keys
        self._notify = notify
        self._rested = rested

    async def run(self) -> None:
        """Watch the type's activity stamp for ever."""
        time = asyncio.get_running_loop().time
        stamp: bytes | None = None
        while True:
            found, watch = await self._context.retried(
                lambda: self._context.read(self._read_stamp), type=self._keys.type
            )
            try:
                if found != stamp:
                    stamp = found
                    self._notify()
                    held_off_until = time() + self._context.settings.notify_holdoff
                    await _change(watch)
                    rests_until = await self._rested()
                    if rests_until - time() < _SHORTEST_REST:
                        rests_until = 0.0
                    await asyncio.sleep(max(held_off_until, rests_until) - time())
                else:
                    await _change(watch)
            finally:
                watch.cancel()

    async def _read_stamp(self, transaction: Transaction) -> tuple[bytes | None, Watch]:
        watch = transaction.watch(self._keys.watch_activity)
        return await transaction.get(self._keys.watch_activity), watch


async def _change(watch: Watch) -> None:
    """Wait for a possible change: stores may lose watches, and then the stamp is read again."""
    with contextlib.suppress(StoreError):
        await watch.wait()


# The notifier


class _Left(NamedTuple):
    """The last record of a job that left the store at its end."""

    raw: bytes


_Raw: TypeAlias = bytes | _Left | None
"""A record as stored."""


class Notifier(Actor):
    """Sends events to the subscribers of one type's jobs.

    Args:
        context: the service's.
        keys: of the type.
        hub: holds the subscriptions.
    """

    def __init__(self, context: Context, keys: TypeKeys, hub: Hub) -> None:
        super().__init__(f"notifier {keys.name}")
        self._context = context
        self._keys = keys
        self._hub = hub
        self._log = log.bind(type=keys.type)
        self._asked = False
        # Set while no read is requested or under way; and the earliest time of the next read.
        self._idle = asyncio.Event()
        self._rests_until = 0.0
        self._pace = Pace(Batch(context.settings.notifier_batch, _LARGEST_READ), first=_FIRST_BATCH)
        # Whether jobs of the type leave at their end, by the last read; and whether its changes are followed.
        self._leaves = False
        self._follows = False
        self._position: Position | None = None
        # At `_remove_at`, rows of changes up to this position are removed.
        self._removable: Position | None = None
        self._remove_at: float | None = None

    async def init(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._hub.listen(self._keys, self._ask)
        monitor = TypeMonitor(self._context, self._keys, self._ask, self._rested)
        self.spawn_link(monitor.run(), "type monitor")
        # The hub keeps subscriptions when a notifier fails: this one may begin with some.
        self._ask()

    async def terminate(self) -> None:
        self._hub.listen(self._keys, None)

    async def run(self) -> None:
        while True:
            message = await self.receive(None if self._remove_at is None else self._remove_at - self._time())
            if message is not None:
                await self.handle(message)
            if self._remove_at is not None and self._remove_at <= self._time():
                await self._remove_seen()

    async def handle(self, message: object) -> None:
        if message != _READ:
            await super().handle(message)
        self._asked = False
        began = self._time()
        fresh = self._hub.take_fresh(self._keys)
        wanted = self._hub.targets(self._keys)
        self._follows = self._leaves or len(wanted) > _FEW
        if not self._follows:
            # Forget the position: when there are more subscriptions, the first read covers all jobs.
            self._position = None
            await self._report_jobs([*wanted])
            self._follows = self._leaves
        if self._follows:
            if self._position is None or not await self._report_changes():
                await self._report_all()
            else:
                await self._report_jobs(fresh)
        # Reads of many subscribed jobs may take long.
        now = self._time()
        self._rests_until = now + rest_after(now - began)
        if not self._asked:
            self._idle.set()

    def _ask(self) -> None:
        """Request a read, unless one is requested already."""
        if not self._asked:
            self._asked = True
            self._idle.clear()
            self.cast(_READ)

    async def _rested(self) -> float:
        await self._idle.wait()
        return self._rests_until

    # Reading

    async def _report_changes(self) -> bool:
        """Report the changed jobs among the subscribed ones; return False if the store no longer has the changes."""
        more = True
        while more:
            position = self._position
            assert position is not None
            by_key = self._hub.targets(self._keys)

            async def select(
                transaction: Transaction, position: Position = position, by_key: Container[bytes] = by_key
            ) -> tuple[ChangedJobs | None, list[bytes]]:
                found = await changes.since(transaction, self._keys, position, _CHANGES_PAGE)
                data = self._keys.data
                ids = () if found is None else found.packed_ids
                return found, [key for packed_id in ids if (key := data + packed_id) in by_key]

            found = await self._report(select)
            if found is None:
                return False
            self._position, more = found.position, found.more
            if found.logged and self._remove_at is None:
                self._remove_at, self._removable = self._time() + _SEEN_FOR, found.position
        return True

    async def _report_all(self) -> None:
        """Report all subscribed jobs, and follow their changes from now on."""
        wanted = list(self._hub.targets(self._keys))

        async def select(transaction: Transaction) -> tuple[Position | None, list[bytes]]:
            position = await changes.begin(transaction, self._keys)
            return position, [] if position is None else wanted

        while (position := await self._report(select)) is None:
            await self._context.retried(
                lambda: self._context.transact(lambda unit: changes.follow(unit.transaction, self._keys)),
                type=self._keys.type,
            )
        self._position = position

    async def _report_jobs(self, data_keys: list[bytes]) -> None:
        """Report these jobs, in batches."""
        left = data_keys
        while left:
            size = self._pace.size
            batch, left = left[:size], left[size:]

            async def select(_: Transaction, batch: list[bytes] = batch) -> tuple[None, list[bytes]]:
                return None, batch

            await self._report(select)

    async def _report(self, select: Callable[[Transaction], Awaitable[tuple[T, list[bytes]]]]) -> T:
        """Read the records of some jobs in one transaction, and send news to their subscribers.

        Args:
            select: returns any result, and the DATA keys of the jobs to read; runs in the same transaction.

        Returns:
            The result of `select`.
        """
        # Skip targets that are added during the read. Their subscriber may have made a change just before, which this
        # read does not show yet: its first event would be older than its own change.
        newest = self._hub.added

        def attempt(size: int) -> Awaitable[tuple[T, list[bytes], list[_Raw]]]:
            async def read(transaction: Transaction) -> tuple[T, list[bytes], list[_Raw]]:
                found, data_keys = await select(transaction)
                return found, data_keys, await _read_all(transaction, self._keys, data_keys[:size])

            return self._context.retried(
                lambda: self._context.read(read), unless=too_much_for(size), type=self._keys.type
            )

        found, data_keys, [kept, *raws] = await self._pace.fitting(attempt, measure=lambda found: _measured(found[2]))
        self._leaves = (Retention.decode(kept) if isinstance(kept, bytes) else FOR_EVER).lets_leave
        if self._leaves and not self._follows:
            return found  # A job may leave unseen later: follow the type first.
        by_key = self._hub.targets(self._keys)
        for data_key, raw in zip(data_keys, raws, strict=False):
            for target in [*by_key.get(data_key, ())]:
                if target.number > newest:
                    continue
                try:
                    self._report_to(target, raw)
                except RecordDamaged as error:
                    # Only the subscriptions of this job fail; the notifier goes on with all others.
                    target.fail(error.of(target.keys.type, target.id))
                if target.ended:
                    self._hub.discard(target)
        await self._report_jobs(data_keys[len(raws) :])
        return found

    async def _remove_seen(self) -> None:
        """Remove rows of changes that the notifiers of all services should have read by now."""
        seen = self._removable
        self._remove_at = self._removable = None
        if seen is None:
            return
        await self._context.retried(
            lambda: self._context.transact(lambda unit: changes.remove_seen(unit.transaction, self._keys, seen)),
            type=self._keys.type,
        )
        if self._position is not None and self._position.changed > seen.changed:
            self._remove_at, self._removable = self._time() + _SEEN_FOR, self._position

    def _report_to(self, target: SubscribedJob, raw: _Raw) -> None:
        reported = target.reported
        if isinstance(raw, _Left):
            # For later subscribers the job does not exist.
            raw = raw.raw if target.knows_it else None
        if raw is None:
            if reported is None:
                target.fail(
                    JobNotFound(
                        f"there is no job {job_name(target.keys.type, target.id)}", type=target.keys.type, id=target.id
                    )
                )
            else:
                target.report(JobEvent(target.keys.type, target.id, JobState.REMOVED, None, None, None))
            return
        if raw == target.raw:
            return
        record = Record.decode(raw, True)
        before = None if target.raw is None else Record.decode(target.raw)
        target.raw = raw
        if (
            before is not None
            and before.state is record.state
            and before.json == record.json
            and before.outcome is record.outcome
            and run_data.parts_of(before.run_data) == run_data.parts_of(record.run_data)
            and run_data.attempts_of(before.run_data) == run_data.attempts_of(record.run_data)
            and next_run(before) == next_run(record)
        ):
            return  # A heartbeat, a flag, another position in the queue: no news for subscribers.
        target.report(
            JobEvent(
                target.keys.type,
                target.id,
                record.state,
                json_data.decode(record.json),
                record.outcome,
                record.seq_bytes,
                run_data.result_of(record.run_data),
                run_data.error_of(record.run_data),
                run_data.progress_of(record.run_data),
                run_data.attempts_of(record.run_data),
                next_run(record),
                record.state is JobState.PENDING and run_data.crashed_last(record.run_data),
            )
        )


async def _read_all(transaction: Transaction, keys: TypeKeys, data_keys: list[bytes]) -> list[_Raw]:
    """Return the type's retention and the records of these jobs, all as stored."""
    raws: list[_Raw] = [*await transaction.get_many([keys.retention, *data_keys])]
    gone = [place for place, raw in enumerate(raws) if raw is None and place]
    if gone:
        last_keys = [keys.last + data_keys[place - 1][len(keys.data) :] for place in gone]
        for place, raw in zip(gone, await transaction.get_many(last_keys), strict=True):
            raws[place] = None if raw is None else _Left(raw)
    return raws


def _measured(raws: list[_Raw]) -> tuple[int, int]:
    """Return the number of records, and their bytes."""
    return len(raws) - 1, sum([len(raw.raw if isinstance(raw, _Left) else raw) for raw in raws if raw is not None])
