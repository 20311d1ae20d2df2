"""Streams of server-sent events: what one client is still to be told, and how it is told.

A client that is slow gets the newest state of each job, as every subscriber does, so what waits for it is bounded. The
bytes of an event are made once for all who get it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from jobs_service.actors.subscriptions import FINAL, Mailbox, Target
from jobs_service.errors import JobNotFound, JobsError, ServiceClosed, SupervisorFailed
from jobs_service.http import problems, wire
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.model import JobEvent, JobId, JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

HEARTBEAT: Final = b": alive\n\n"
END: Final = b"event: end\ndata: {}\n\n"
RESET: Final = b"event: reset\ndata: {}\n\n"
BEGIN: Final = b"retry: 1000\n\n"
"""Milliseconds after which a browser connects again."""

_MOST_AT_ONCE: Final = 1 << 16
"""Bytes that are sent together."""
_MOST_CHANGES: Final = 1000
"""Changes of a type's jobs that wait for a client; one that is further behind is told to look anew."""
_MOST_FRAMES: Final = 2000
_MOST_FRAME_BYTES: Final = 8 << 20

_NO_MAILBOX: Final = Mailbox()
_TOLD: Final = JobEvent("", "", JobState.PENDING, None, None, None)
"""Stands for what was told: the events themselves, with their data, are not kept for each client."""


class Stream:
    """What one client is still to be told.

    Args:
        owner: name of the token by which it is read.
        last_id: of the last event that it has got, empty for none.

    Attributes:
        refusal: why there is nothing to tell of the only job that was asked for.
        has_told: whether anything was there to be told.
    """

    __slots__ = ("_arrival", "_is_over", "_open", "_pending", "has_told", "last_id", "owner", "refusal")

    def __init__(self, owner: str, last_id: str = "") -> None:
        self.owner = owner
        self.last_id = last_id
        self.refusal: JobsError | None = None
        self.has_told = False
        # What is to be told by what it is about; the number of jobs of which more may come, None for a type.
        self._pending: dict[Hashable, bytes] = {}
        self._open: int | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._is_over = False

    def expect(self, jobs: int) -> None:
        """Say of how many jobs is to be told."""
        self._open = jobs

    def put(self, about: Hashable, frame: bytes) -> None:
        """Have something told, in place of what was to be told about the same before."""
        self._pending[about] = frame
        self.has_told = True
        self._wake()

    def put_last(self, about: Hashable, frame: bytes) -> None:
        """Have something told behind all that waits."""
        self._pending.pop(about, None)
        self.put(about, frame)

    def put_change(self, about: Hashable, frame: bytes) -> None:
        """Have a change of a type's job told, or that there are too many."""
        self.put(about, frame)
        if len(self._pending) > _MOST_CHANGES:
            self._pending.clear()
            self.put(RESET, RESET)

    def waits(self, about: Hashable) -> bool:
        """Whether something is to be told about this."""
        return about in self._pending

    def withdraw(self, about: Hashable) -> None:
        """Tell nothing about this."""
        self._pending.pop(about, None)

    def ended(self, jobs: int = 1) -> None:
        """Say that nothing more comes of so many jobs."""
        assert self._open is not None
        self._open -= jobs
        self._wake()

    def end(self) -> None:
        """Tell nothing any more."""
        self._is_over = True
        self._wake()

    async def next(self, seconds: float) -> bytes | None:
        """Return what is to be told next, a sign of life after so many seconds, None when it is over."""
        if not self._pending and not self._is_over and self._open != 0:
            loop = asyncio.get_running_loop()
            self._arrival = loop.create_future()
            alarm = loop.call_later(seconds, self._wake)
            try:
                await self._arrival
            finally:
                alarm.cancel()
                self._arrival = None
        if self._is_over:
            return None
        if self._pending:
            return self._taken()
        if self._open == 0:
            self._is_over = True
            return END
        return HEARTBEAT

    def _taken(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._pending and size < _MOST_AT_ONCE:
            about = next(iter(self._pending))
            frame = self._pending.pop(about)
            parts.append(frame)
            size += len(frame)
            if isinstance(about, JobTarget):
                about.taken_by_client()
        return b"".join(parts)

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class Frames:
    """The bytes of events, by what the store has of a job: many clients wait for the same.

    Args:
        form: returns an event as JSON has it.
    """

    def __init__(self, form: Callable[[JobEvent], dict[str, Any]]) -> None:
        self._form = form
        self._made: OrderedDict[bytes, tuple[bytes, bytes, str]] = OrderedDict()
        self._bytes = 0
        self.made = 0

    def of(self, data_key: bytes, raw: bytes | None, event: JobEvent) -> tuple[bytes | None, bytes, str]:
        """Return a job's record as kept here, its event's bytes, and what tells it from others.

        Args:
            data_key: of the job.
            raw: its record, from which the event was made; None for one that is gone.
            event: is made into bytes unless that was done before.
        """
        found = self._made.get(data_key)
        if found is not None and raw is not None and found[0] == raw:
            return found
        frame, digest = self._frame(event)
        if raw is None:
            return None, frame, digest
        if found is not None:
            self._bytes -= len(found[0]) + len(found[1])
            self._made.pop(data_key)
        self._made[data_key] = (raw, frame, digest)
        self._bytes += len(raw) + len(frame)
        while self._bytes > _MOST_FRAME_BYTES or len(self._made) > _MOST_FRAMES:
            _, (old, made, _) = self._made.popitem(last=False)
            self._bytes -= len(old) + len(made)
        return raw, frame, digest

    def _frame(self, event: JobEvent) -> tuple[bytes, str]:
        self.made += 1
        form = self._form(event)
        # A heartbeat makes another seq of the same news.
        digest = blake2b(wire.dumps({**form, "seq": None}), digest_size=8).hexdigest()
        id = f"{form['seq'] or 'removed'}.{digest}"
        return b"id: %s\nevent: job\ndata: %s\n\n" % (id.encode(), wire.dumps(form)), digest


class JobTarget(Target):
    """One job that a client waits for."""

    __slots__ = ("_frames", "_is_alone", "_said", "_stream", "_waiting")

    def __init__(self, keys: TypeKeys, id: JobId, stream: Stream, frames: Frames, *, is_alone: bool) -> None:
        super().__init__(keys, id, _NO_MAILBOX)
        self._stream = stream
        self._frames = frames
        self._is_alone = is_alone
        # What the client knows of the job, and what is on the way to it.
        self._said = stream.last_id.rpartition(".")[2]
        self._waiting = ""

    def tell(self, event: JobEvent) -> None:
        """Put the event where its client finds it, in place of one that it has not been sent yet."""
        self.told = _TOLD
        raw = None if event.state is JobState.REMOVED else self.raw
        self.raw, frame, digest = self._frames.of(self.data_key, raw, event)
        self.ended = event.state in FINAL
        if digest == self._said:
            # It knows that already, or will not know that there was anything in between.
            self._stream.withdraw(self)
            if self.ended:
                self._stream.ended()
            return
        self._waiting = digest
        self._stream.put(self, frame)

    def fail(self, error: JobsError) -> None:
        """End with an error; when the server ends, the client connects again, to the next one."""
        if isinstance(error, ServiceClosed | SupervisorFailed):
            self._stream.end()
            return
        if self._is_alone and self.told is None and isinstance(error, JobNotFound) and self._stream.last_id:
            # It was there when the client was told of it last.
            return self.tell(JobEvent(self.keys.type, self.id, JobState.REMOVED, None, None, None))
        self.ended = True
        if self._is_alone and self.told is None:
            self._stream.refusal = error
            self._stream.end()
            return
        self._stream.put(self, b"event: problem\ndata: %s\n\n" % wire.dumps(problems.problem(error)))

    def taken_by_client(self) -> None:
        """Note that the client is being sent what was put last."""
        self._said = self._waiting
        if self.ended:
            self._stream.ended()
