"""Changes of a type's jobs, for all clients that follow the type: read once, encoded once.

Changes are found as notifiers find them (`layer/changes.py`). The id of the last event is a position among them, so
that a client that reconnects gets the changes since, even from another process.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from jobs_service import json_forms
from jobs_service.actors.context import rest_after
from jobs_service.errors import JobsError, RecordDamaged, StoreError
from jobs_service.http import wire
from jobs_service.http.streams import RESET, Stream
from jobs_service.layer import changes
from jobs_service.layer.changes import Position
from jobs_service.layer.key_parts import is_id, pack_id, unpack_id
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import Record
from jobs_service.log import EventLog
from jobs_service.model import Job, JobState, JobType
from jobs_service.store.base import Transaction, Watch

if TYPE_CHECKING:
    from jobs_service.http.state import State

log = EventLog("jobs_service.http")

_PAGE: Final = 200
_RECORDS: Final = 50
"""Records of one read: each may be large."""
_SEEN_FOR: Final = 10.0
"""Seconds for which rows of changes are left for slower followers."""
_MARK: Final = "mark"


class TypeFeeds:
    """The types that clients follow.

    Args:
        state: of the server.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._feeds: dict[TypeKeys, TypeFeed] = {}

    async def join(self, type: JobType, stream: Stream) -> None:
        """Send a type's changes to a client, from now on or from its last position.

        Raises:
            JobsError: the store failed.
        """
        keys = self._state.service.remote.access.keys(type)
        feed = self._feeds.get(keys)
        if feed is None:
            feed = self._feeds[keys] = TypeFeed(self._state, keys)
        await feed.join(stream)

    def leave(self, type: JobType, stream: Stream) -> None:
        """Send nothing more to a client."""
        keys = self._state.service.remote.context.keyspace.of(type)
        feed = self._feeds.get(keys)
        if feed is not None and feed.leave(stream):
            del self._feeds[keys]

    async def close(self) -> None:
        """End all feeds."""
        feeds = [*self._feeds.values()]
        self._feeds.clear()
        for feed in feeds:
            await feed.close()


class TypeFeed:
    """One type that clients follow.

    Args:
        state: of the server.
        keys: of the type.
    """

    def __init__(self, state: State, keys: TypeKeys) -> None:
        self._state = state
        self._context = state.service.remote.context
        self._keys = keys
        self._streams: dict[Stream, None] = {}
        self._position: Position | None = None
        self._following: asyncio.Task[None] | None = None
        self._removable: tuple[float, Position] | None = None

    async def join(self, stream: Stream) -> None:
        """Send changes to a client, from now on or from its last position."""
        # The stream is registered first, so that it misses no change after the position.
        self._streams[stream] = None
        if self._position is None:
            begun = await self._begin()
            # Another client may have joined meanwhile, and must not miss the changes since then.
            self._position = self._position or begun
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow())
        if not stream.last_id:
            stream.put_last(_MARK, _mark(self._position))
            return
        position = _position_of(stream.last_id)
        while position is not None:
            frames, found, more = await self._changes(position)
            for about, frame in frames:
                stream.put_change(about, frame)
            if found is not None:
                stream.put_last(_MARK, _mark(found))
            if not more and found is not None:
                return
            position = found
        stream.put(RESET, RESET)
        stream.put_last(_MARK, _mark(self._position))

    def leave(self, stream: Stream) -> bool:
        """Forget a client; return whether none is left."""
        self._streams.pop(stream, None)
        if not self._streams and self._following is not None:
            self._following.cancel()
        return not self._streams

    async def close(self) -> None:
        """Stop following the type."""
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        holdoff = self._context.settings.notify_holdoff
        try:
            while True:
                watch = await self._context.retried(lambda: self._context.read(self._watch))
                try:
                    began = loop.time()
                    await self._look()
                    await self._remove_seen()
                    took = loop.time() - began
                    wait = None if self._removable is None else max(self._removable[0] - loop.time(), 0.0)
                    with contextlib.suppress(StoreError, TimeoutError):
                        async with asyncio.timeout(wait):
                            await watch.wait()
                finally:
                    watch.cancel()
                # Slow reads are repeated less often, to spare the event loop.
                await asyncio.sleep(max(holdoff, rest_after(took)))
        except JobsError as error:
            log.warning("type_feed_ended", type=self._keys.type, error=str(error))
            for stream in self._streams:
                stream.end()

    async def _watch(self, transaction: Transaction) -> Watch:
        watch: Watch = transaction.watch(self._keys.watch_activity)
        await transaction.get(self._keys.watch_activity)
        return watch

    async def _begin(self) -> Position:
        """Return the position for following the type from now on."""
        while True:
            position = await self._context.retried(
                lambda: self._context.read(lambda transaction: changes.begin(transaction, self._keys, new=True))
            )
            if position is not None:
                return position
            await self._context.retried(
                lambda: self._context.transact(lambda unit: changes.follow(unit.transaction, self._keys, new=True))
            )

    async def _look(self) -> None:
        """Send new changes to all clients."""
        more = True
        while more:
            assert self._position is not None
            frames, found, more = await self._changes(self._position)
            if found is None:
                self._position = await self._begin()
                for stream in self._streams:
                    stream.put(RESET, RESET)
                    stream.put_last(_MARK, _mark(self._position))
                return
            self._position = found
            if not frames:
                continue
            mark = _mark(found)
            for stream in self._streams:
                for about, frame in frames:
                    stream.put_change(about, frame)
                stream.put_last(_MARK, mark)

    async def _changes(self, position: Position) -> tuple[list[tuple[bytes, bytes]], Position | None, bool]:
        """Return the changes behind a position as events, the new position, and whether there are more."""
        found = await self._context.retried(
            lambda: self._context.read(lambda transaction: changes.since(transaction, self._keys, position, _PAGE))
        )
        if found is None:
            return [], None, False
        if found.logged and self._removable is None:
            self._removable = asyncio.get_running_loop().time() + _SEEN_FOR, found.position
        frames: list[tuple[bytes, bytes]] = []
        for start in range(0, len(found.packed_ids), _RECORDS):
            frames += await self._frames(found.packed_ids[start : start + _RECORDS])
        return frames, found.position, found.more

    async def _frames(self, packed_ids: list[bytes]) -> list[tuple[bytes, bytes]]:
        data = self._keys.data
        # A damaged row may hold an invalid id.
        packed_ids = [packed_id for packed_id in packed_ids if is_id(packed_id)]

        async def read(transaction: Transaction) -> tuple[list[bytes | None], dict[bytes, bytes | None]]:
            raws = await transaction.get_many([data + packed_id for packed_id in packed_ids])
            gone = [packed_id for packed_id, raw in zip(packed_ids, raws, strict=True) if raw is None]
            last = await transaction.get_many([self._keys.last + packed_id for packed_id in gone]) if gone else ()
            return [*raws], dict(zip(gone, last, strict=True))

        raws, last = await self._context.retried(lambda: self._context.read(read))
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
        return [*frames.items()]

    async def _remove_seen(self) -> None:
        """Remove rows of changes that all followers of the type should have seen by now."""
        if self._removable is None or self._removable[0] > asyncio.get_running_loop().time():
            return
        seen = self._removable[1]
        self._removable = None
        await self._context.retried(
            lambda: self._context.transact(lambda unit: changes.remove_seen(unit.transaction, self._keys, seen))
        )
        if self._position is not None and self._position.changed > seen.changed:
            self._removable = asyncio.get_running_loop().time() + _SEEN_FOR, self._position


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
