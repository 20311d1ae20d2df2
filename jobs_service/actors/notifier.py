"""The notifier of one type: finds out what became of the subscribed jobs and tells their subscribers.

It is told that the type had activity (by its type monitor) or that there are new subscriptions (by the hub), and then
looks: reads which jobs have changed since its last look (see `layer/changes.py`), and the records of those that are
subscribed to; at first, when it is too far behind, and while they are few, the records of all subscribed jobs. Looks
follow each other, so that no subscriber is told something older after something newer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from typing import Final, TypeAlias, TypeVar

from jobs_service import json_data, run_data
from jobs_service.actors.context import Context, log
from jobs_service.actors.subscriptions import Hub, Target
from jobs_service.actors.type_monitor import TypeMonitor
from jobs_service.errors import JobNotFound, RecordDamaged, StoreDamaged, job_name
from jobs_service.layer import changes
from jobs_service.layer.batch_bounds import Batch, Pace, too_much_for
from jobs_service.layer.changes import Found, Position
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import Record
from jobs_service.model import JobEvent, JobState, next_run
from jobs_service.store.base import Transaction
from jobs_service.supervision import Actor

T = TypeVar("T")

_LOOK: Final = "look"
_FEW: Final = 8
"""Subscribed jobs that are read at every look: that costs less than asking which of them have changed (0.1 of 0.4 ms
from a finish to its event on the embedded store), and less for those who change them: nothing is written for it."""

_CHANGES_PAGE: Final = 1000
_FIRST_BATCH: Final = 100
_LARGEST_READ: Final = 4_000_000
"""Bytes of records that one read should have, about."""

_SEEN_FOR: Final = 10.0
"""Seconds that rows of changes are left for other notifiers who are slower."""

_Raw: TypeAlias = bytes | StoreDamaged | None
"""A record as stored: None when there is none, an error when it is on a damaged page."""


class Notifier(Actor):
    """Tells the subscribers of one type's jobs.

    Args:
        context: the service's.
        keys: of the type.
        hub: where the subscriptions are.
    """

    def __init__(self, context: Context, keys: TypeKeys, hub: Hub) -> None:
        super().__init__(f"notifier {keys.name}")
        self._context = context
        self._keys = keys
        self._hub = hub
        self._log = log.bind(type=keys.type)
        self._asked = False
        self._look_took = 0.0
        self._pace = Pace(Batch(context.settings.notifier_batch, _LARGEST_READ), first=_FIRST_BATCH)
        self._position: Position | None = None
        # Rows of changes up to there are to be removed then.
        self._removable: Position | None = None
        self._remove_at: float | None = None

    async def init(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._hub.listen(self._keys, self._ask)
        monitor = TypeMonitor(self._context, self._keys, self._activity)
        self.spawn_link(monitor.run(), "type monitor")
        # Subscriptions may have outlived the notifier before this one.
        self._ask()

    async def terminate(self) -> None:
        self._hub.listen(self._keys, None)

    async def run(self) -> None:
        while True:
            message = await self.receive(None if self._remove_at is None else self._remove_at - self._time())
            if message is not None:
                await self.handle(message.body)
            if self._remove_at is not None and self._remove_at <= self._time():
                await self._remove_seen()

    async def handle(self, message: object) -> None:
        if message != _LOOK:
            await super().handle(message)
        self._asked = False
        began = self._time()
        fresh = self._hub.take_fresh(self._keys)
        wanted = self._hub.targets(self._keys)
        if len(wanted) <= _FEW:
            # Whoever follows changes after that begins anew: all that is subscribed to by then is read.
            self._position = None
            await self._look_at([*wanted])
        elif self._position is None or not await self._look_at_changes():
            await self._look_at_all()
        else:
            await self._look_at(fresh)
        self._look_took = self._time() - began

    def _ask(self) -> None:
        """Have a look taken, unless one is to come anyway."""
        if not self._asked:
            self._asked = True
            self.cast(_LOOK)

    def _activity(self) -> float:
        self._ask()
        return self._look_took

    # Looks

    async def _look_at_changes(self) -> bool:
        """Look at the subscribed jobs that have changed; return False if it cannot be told any more which have."""
        more = True
        while more:
            position = self._position
            assert position is not None
            by_key = self._hub.targets(self._keys)

            async def look(
                transaction: Transaction, position: Position = position, by_key: Container[bytes] = by_key
            ) -> tuple[Found | None, list[bytes]]:
                found = await changes.since(transaction, self._keys, position, _CHANGES_PAGE)
                data = self._keys.data
                ids = () if found is None else found.packed_ids
                return found, [key for packed_id in ids if (key := data + packed_id) in by_key]

            found = await self._tell_of(look)
            if found is None:
                return False
            self._position, more = found.position, found.more
            if found.logged and self._remove_at is None:
                self._remove_at, self._removable = self._time() + _SEEN_FOR, found.position
        return True

    async def _look_at_all(self) -> None:
        """Look at all subscribed jobs, and follow what happens to them from now on."""
        wanted = list(self._hub.targets(self._keys))

        async def look(transaction: Transaction) -> tuple[Position | None, list[bytes]]:
            position = await changes.begin(transaction, self._keys)
            return position, [] if position is None else wanted

        while (position := await self._tell_of(look)) is None:
            await self._context.retried(
                lambda: self._context.transact(lambda unit: changes.follow(unit.transaction, self._keys)),
                type=self._keys.type,
            )
        self._position = position

    async def _look_at(self, data_keys: list[bytes]) -> None:
        """Look at these jobs, in batches."""
        left = data_keys
        while left:
            size = self._pace.size
            batch, left = left[:size], left[size:]

            async def look(_: Transaction, batch: list[bytes] = batch) -> tuple[None, list[bytes]]:
                return None, batch

            await self._tell_of(look)

    async def _tell_of(self, look: Callable[[Transaction], Awaitable[tuple[T, list[bytes]]]]) -> T:
        """Read the records of some jobs in one state, tell their subscribers what is new, and return what was found.

        Args:
            look: returns what it has found, and the DATA keys of the jobs; part of the same transaction.
        """
        # Who subscribes during the read may be there because of something that it does not show yet.
        asking = self._hub.added

        def attempt(size: int) -> Awaitable[tuple[T, list[bytes], list[_Raw]]]:
            async def read(transaction: Transaction) -> tuple[T, list[bytes], list[_Raw]]:
                found, data_keys = await look(transaction)
                return found, data_keys, await _read_all(transaction, data_keys[:size])

            return self._context.retried(
                lambda: self._context.read(read), unless=too_much_for(size), type=self._keys.type
            )

        found, data_keys, raws = await self._pace.fitting(attempt, measure=lambda found: _measured(found[2]))
        by_key = self._hub.targets(self._keys)
        for data_key, raw in zip(data_keys, raws, strict=False):
            for target in [*by_key.get(data_key, ())]:
                if target.number > asking:
                    continue
                try:
                    self._tell(target, raw)
                except RecordDamaged as error:
                    # Nobody can say any more what becomes of this job; all others have nothing to do with it.
                    target.fail(error.of(target.keys.type, target.id))
                if target.ended:
                    self._hub.discard(target)
        await self._look_at(data_keys[len(raws) :])
        return found

    async def _remove_seen(self) -> None:
        """Remove rows of changes that all who follow the type should have seen by now."""
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

    def _tell(self, target: Target, raw: _Raw) -> None:
        told = target.told
        if isinstance(raw, StoreDamaged):
            raise RecordDamaged(f"job {job_name(target.keys.type, target.id)}: {raw}")
        if raw is None:
            if told is None:
                target.fail(
                    JobNotFound(
                        f"there is no job {job_name(target.keys.type, target.id)}", type=target.keys.type, id=target.id
                    )
                )
            else:
                target.tell(JobEvent(target.keys.type, target.id, JobState.REMOVED, None, None, None))
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
            return  # A heartbeat, a flag, a place in the queue: nothing that subscribers are told.
        target.tell(
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
            )
        )


async def _read_all(transaction: Transaction, data_keys: list[bytes]) -> list[_Raw]:
    """Return the records of these jobs: one that cannot be read is no reason not to read the others."""
    try:
        return [*await transaction.get_many(data_keys)]
    except StoreDamaged:
        return [await _read_one(transaction, data_key) for data_key in data_keys]


def _measured(raws: list[_Raw]) -> tuple[int, int]:
    """Return how many records were read, and their bytes."""
    return len(raws), sum([len(raw) for raw in raws if type(raw) is bytes])


async def _read_one(transaction: Transaction, data_key: bytes) -> _Raw:
    try:
        return await transaction.get(data_key)
    except StoreDamaged as error:
        return error
