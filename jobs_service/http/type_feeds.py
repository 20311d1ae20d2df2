"""Changes of a type's jobs, for a client that follows the type.

Changes are found as notifiers find them (`layer/changes.py`). The id of the last event is a position among them, so
that a client that reconnects gets the changes since, even from another process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jobs_service import json_forms
from jobs_service.actors.context import rest_after
from jobs_service.errors import RecordDamaged, StoreError
from jobs_service.http import wire
from jobs_service.layer import activity, changes
from jobs_service.layer.changes import Position
from jobs_service.layer.creation import no_type
from jobs_service.layer.key_parts import is_id, pack_id, unpack_id
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import Record
from jobs_service.model import Job, JobState
from jobs_service.store.base import Transaction, Watch

if TYPE_CHECKING:
    from jobs_service.http.state import State
    from jobs_service.service import JobsService

T = TypeVar("T")

RESET: Final = b"event: reset\ndata: {}\n\n"
_PAGE: Final = 200
_RECORDS: Final = 50
"""Records of one read: each may be large."""
_SEEN_FOR: Final = 10.0
"""Seconds for which rows of changes are left for slower followers."""


async def existing(service: JobsService, keys: list[TypeKeys]) -> set[TypeKeys]:
    """Return the types that exist or have jobs; following another type would leave rows of it in the store."""
    read = await service.remote.access.read(lambda transaction: activity.samples(transaction, keys))
    found = {each for each, (timeout, _) in zip(keys, read, strict=True) if timeout}
    if len(found) < len(keys):
        counts = await service.counts()
        found |= {each for each in keys if each.type in counts and counts[each.type].jobs}
    return found


class TypeFeed:
    """The changes of one type's jobs, for one client.

    Args:
        state: of the server.
        keys: of the type.
    """

    def __init__(self, state: State, keys: TypeKeys) -> None:
        self._state = state
        self._context = state.service.remote.context
        self._keys = keys
        self._removable: tuple[float, Position] | None = None

    async def parts(self, last_id: str) -> AsyncGenerator[bytes, None]:
        """Yield the changes as events, as bytes: from now on, or from the client's last position.

        Args:
            last_id: id of the client's last event, empty for none.

        Raises:
            JobsError: there is no such type, or the store failed.
        """
        if not await existing(self._state.service, [self._keys]):
            raise no_type(self._keys)
        position = _position_of(last_id)
        if position is None:
            position = await self._now()
            yield (RESET if last_id else b"") + _mark(position)
        else:
            yield _mark(position)
        time = asyncio.get_running_loop().time
        while True:
            watch = await self._read(self._watch)
            try:
                began, more = time(), True
                while more:
                    since = partial(changes.since, keys=self._keys, position=position, limit=_PAGE)
                    found = await self._read(since)
                    if found is None:
                        position = await self._now()
                        yield RESET + _mark(position)
                        continue
                    for start in range(0, len(found.packed_ids), _RECORDS):
                        yield await self._frames(found.packed_ids[start : start + _RECORDS])
                    position, more = found.position, found.more
                    if found.packed_ids:
                        yield _mark(position)
                    if found.logged and self._removable is None:
                        self._removable = time() + _SEEN_FOR, position
                await self._remove_seen(position)
                took = time() - began
                wait = None if self._removable is None else max(self._removable[0] - time(), 0.0)
                with contextlib.suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(wait):
                        await watch.wait()
            finally:
                watch.cancel()
            # Slow reads are repeated less often, to spare the event loop.
            await asyncio.sleep(max(self._context.settings.notify_holdoff, rest_after(took)))

    async def _read(self, read: Callable[[Transaction], Coroutine[Any, Any, T]]) -> T:
        return await self._context.retried(lambda: self._context.read(read))

    async def _watch(self, transaction: Transaction) -> Watch:
        watch: Watch = transaction.watch(self._keys.watch_activity)
        await transaction.get(self._keys.watch_activity)
        return watch

    async def _now(self) -> Position:
        """Return the position for following the type from now on."""
        while True:
            position = await self._read(lambda transaction: changes.begin(transaction, self._keys, new=True))
            if position is not None:
                return position
            await self._context.retried(
                lambda: self._context.transact(lambda unit: changes.follow(unit.transaction, self._keys, new=True))
            )

    async def _frames(self, packed_ids: list[bytes]) -> bytes:
        data = self._keys.data
        # A damaged row may hold an invalid id.
        packed_ids = [packed_id for packed_id in packed_ids if is_id(packed_id)]

        async def read(transaction: Transaction) -> tuple[list[bytes | None], dict[bytes, bytes | None]]:
            raws = await transaction.get_many([data + packed_id for packed_id in packed_ids])
            gone = [packed_id for packed_id, raw in zip(packed_ids, raws, strict=True) if raw is None]
            last = await transaction.get_many([self._keys.last + packed_id for packed_id in gone]) if gone else ()
            return [*raws], dict(zip(gone, last, strict=True))

        raws, last = await self._read(read)
        jobs: list[Job] = []
        gone: dict[bytes, dict[str, Any]] = {}
        for packed_id, raw in zip(packed_ids, raws, strict=True):
            id = unpack_id(packed_id)
            brief = {"type": json_forms.name(self._keys.type), "id": json_forms.name(id)}
            try:
                if raw is None:
                    gone[packed_id] = {**brief, "state": JobState.REMOVED.value}
                # A job that was removed at its end is reported as finished first, then as removed.
                if (raw := raw or last[packed_id]) is not None:
                    jobs.append(Job(self._keys.type, id, Record.decode(raw, True)))
            except RecordDamaged:
                gone[packed_id] = {**brief, "state": JobState.UNREADABLE.value}
        frames = dict.fromkeys(packed_ids, b"")
        for job, form in zip(jobs, await self._state.job_forms(jobs), strict=True):
            frames[pack_id(job.id)] = _frame(_brief(form))
        for packed_id, brief in gone.items():
            frames[packed_id] += _frame(brief)
        return b"".join(frames.values())

    async def _remove_seen(self, position: Position) -> None:
        """Remove rows of changes that all followers of the type should have seen by now."""
        if self._removable is None or self._removable[0] > asyncio.get_running_loop().time():
            return
        seen = self._removable[1]
        self._removable = None
        await self._context.retried(
            lambda: self._context.transact(lambda unit: changes.remove_seen(unit.transaction, self._keys, seen))
        )
        if position.changed > seen.changed:
            self._removable = asyncio.get_running_loop().time() + _SEEN_FOR, position


def _frame(form: dict[str, Any]) -> bytes:
    return b"event: job\ndata: %s\n\n" % wire.dumps(form)


def _brief(form: dict[str, Any]) -> dict[str, Any]:
    """Return a change as JSON: a summary of the job."""
    error = form["error"]
    names = ("type", "id", "state", "outcome", "seq", "attempts", "progress", "run_at", "retrying", "cancel")
    return {
        **{name: form[name] for name in names},
        "error": None if error is None else {"type": error["type"], "message": error["message"][:200]},
    }


def _mark(position: Position) -> bytes:
    """Return an event without data: the position of a client after all events before it."""
    return b"id: %s\n\n" % ".".join(part.hex() for part in position).encode()


def _position_of(last_id: str) -> Position | None:
    """Return the position in an event's id; None if the id is malformed."""
    try:
        generation, changed, active = (bytes.fromhex(part) for part in last_id.split("."))
    except ValueError:
        return None
    return Position(generation, changed, active) if len(changed) == len(active) == 12 else None
