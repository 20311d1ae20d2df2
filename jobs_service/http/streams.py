"""Streams of server-sent events: the pending events of each client, and their encoding.

A slow client gets the newest state of each job, like every subscriber, so its pending events are bounded. An event is
encoded once for all clients.
"""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobs_service.actors.subscriptions import FINAL, Mailbox, Target
from jobs_service.errors import JobNotFound, JobsError, ServiceClosed, SupervisorFailed
from jobs_service.http import problems, wire
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.model import JobEvent, JobId, JobState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from jobs_service.http.roles import Session

HEARTBEAT: Final = b": alive\n\n"
END: Final = b"event: end\ndata: {}\n\n"
RESET: Final = b"event: reset\ndata: {}\n\n"
BEGIN: Final = b"retry: 1000\n\n"
"""Milliseconds after which a browser connects again."""

_MOST_AT_ONCE: Final = 1 << 16
"""Bytes of pending events from which on a part is sent."""
_MOST_CHANGES: Final = 1000
"""Most changes of a type's jobs that wait for a client; a client further behind gets a reset."""
_MOST_FRAMES: Final = 2000
_MOST_FRAME_BYTES: Final = 8 << 20
_DIGEST_BYTES: Final = 6
"""Size of one job's digest: the digests of a thousand jobs still fit into one header."""
_KEPT: Final = 1.0
"""Seconds for which an encoded event is used again: later, other fields may be secret."""

_ALL: Final = "all"
"""Prefix of the event ids of a stream of several jobs."""
_NOT_TOLD: Final = bytes(_DIGEST_BYTES)
_NO_MAILBOX: Final = Mailbox()
_TOLD: Final = JobEvent("", "", JobState.PENDING, None, None, None)
"""Stands for a reported event: events, with their data, are not kept for each client."""


class Stream:
    """The pending events of one client.

    Args:
        owner: name of the client's token.
        last_id: id of the client's last event, empty for none.
        session: the client's login, None for none.
        holds: returns whether the login is still valid; called from time to time: another server may have ended it.

    Attributes:
        refusal: the error of the only requested job, if there are no events of it.
        has_told: whether there was any event to send.
    """

    __slots__ = (
        *("_arrival", "_asked", "_holds", "_is_over", "_open", "_pending", "_targets", "_unheard"),
        *("has_told", "last_id", "owner", "refusal", "session"),
    )

    def __init__(
        self,
        owner: str,
        last_id: str = "",
        session: Session | None = None,
        holds: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.owner = owner
        self.last_id = last_id
        self.session = session
        self._holds = holds
        self._asked: float | None = None
        self.refusal: JobsError | None = None
        self.has_told = False
        # Pending events by subject; the number of jobs that may have further events, None for a type.
        self._pending: dict[Hashable, bytes | JobEvent | Frame] = {}
        self._open: int | None = None
        self._arrival: asyncio.Future[bool] | None = None
        self._is_over = False
        # The number of jobs without any event yet.
        self._unheard = 0
        # Only for a stream of several jobs.
        self._targets: Sequence[JobTarget] = ()

    def expect(self, targets: Sequence[JobTarget]) -> None:
        """Set the jobs of the stream."""
        self._open = self._unheard = len(targets)
        several = len(targets) > 1
        self._targets = targets if several else ()
        known = self._known_of_all(len(targets)) if several else [self._known_of_one()]
        for target, said in zip(targets, known, strict=False):
            target.said = said

    def _known_of_one(self) -> str:
        """Return the digest that the client has of the only job."""
        return self.last_id.rpartition(".")[2]

    def _known_of_all(self, count: int) -> list[str]:
        """Return the digests that the client has of several jobs; empty ones if its last id does not fit them."""
        head, _, text = self.last_id.partition(".")
        try:
            packed = base64.b64decode(text, b"-_", validate=True)
        except ValueError:
            packed = b""
        if head != _ALL or len(packed) != count * _DIGEST_BYTES:
            return [""] * count
        digests = [packed[start : start + _DIGEST_BYTES] for start in range(0, len(packed), _DIGEST_BYTES)]
        return ["" if digest == _NOT_TOLD else digest.hex() for digest in digests]

    def _position(self) -> bytes:
        """Return the id after which a stream of several jobs goes on: the last digest of each job.

        It is an event without data, so it sets the id alone. On a stream of one job, each event has its own id.
        """
        if not self._targets:
            return b""
        packed = b"".join(bytes.fromhex(target.said) or _NOT_TOLD for target in self._targets)
        return b"id: %s.%s\n\n" % (_ALL.encode(), base64.b64encode(packed, b"-_"))

    def put(self, about: Hashable, frame: bytes | JobEvent) -> None:
        """Queue an event, in place of an older one on the same subject."""
        self._pending[about] = frame
        self.wake()

    def keep(self, about: Hashable, event: JobEvent) -> bool:
        """Queue an event that is not encoded yet; return whether the client waits, so that `made` is to wake it."""
        self._pending[about] = event
        return self._arrival is not None

    def made(self, about: Hashable, event: JobEvent, frame: Frame | None) -> None:
        """Take the bytes of a queued event, unless a newer one has replaced it; None if encoding failed."""
        if frame is not None and self._pending.get(about) is event:
            self._pending[about] = frame
        self.wake()

    def put_last(self, about: Hashable, frame: bytes) -> None:
        """Queue an event behind all others."""
        self._pending.pop(about, None)
        self.put(about, frame)

    def put_change(self, about: Hashable, frame: bytes) -> None:
        """Queue a change of a type's job, or a reset if there are too many."""
        self.put(about, frame)
        if len(self._pending) > _MOST_CHANGES:
            self._pending.clear()
            self.put(RESET, RESET)

    def heard(self) -> None:
        """Note that the present state of one more job is known."""
        self._unheard -= 1

    def ended(self, jobs: int = 1) -> None:
        """Note that so many jobs have no further events."""
        assert self._open is not None
        self._open -= jobs
        self.wake()

    def end(self) -> None:
        """End the stream."""
        self._is_over = True
        self.wake()

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended."""
        return self._is_over

    async def next(self, seconds: float) -> bytes | None:
        """Return the next part, a sign of life after so many seconds, None at the end of the stream."""
        while not self._is_over:
            if not await self._is_still_allowed(seconds):
                self._is_over = True
                return None
            if self._pending:
                if part := await self._taken():
                    self.has_told = True
                    part += self._position()
                    if self._open == 0 and not self._pending and not self._is_over:
                        # Both at once: very many clients may wait for the same end.
                        self._is_over = True
                        return part + END
                    return part
                if self._open and not self._pending and not self._unheard:
                    return HEARTBEAT  # tells the client that it is up to date
            elif self._open == 0:
                self._is_over = True
                return END
            elif not await self._something(seconds):
                return HEARTBEAT
        return None

    async def _is_still_allowed(self, seconds: float) -> bool:
        """Return whether the client's login is valid; it is checked again after so many seconds."""
        if self._holds is None:
            return True
        now = asyncio.get_running_loop().time()
        if self._asked is None or now - self._asked >= seconds:
            is_first, self._asked = self._asked is None, now
            return is_first or await self._holds()
        return True

    async def _something(self, seconds: float) -> bool:
        """Return whether an event came within so many seconds."""
        loop = asyncio.get_running_loop()
        arrival: asyncio.Future[bool] = loop.create_future()
        self._arrival = arrival
        alarm = loop.call_later(seconds, _give_up, arrival)
        try:
            return await arrival
        finally:
            alarm.cancel()
            self._arrival = None

    async def _taken(self) -> bytes:
        """Return the pending events, or a first part of them if they are large."""
        parts: list[bytes] = []
        size = 0
        while self._pending and size < _MOST_AT_ONCE and not self._is_over:
            about = next(iter(self._pending))
            frame = self._pending.pop(about)
            if isinstance(about, JobTarget):
                frame = await about.taken_by_client(frame)
            assert isinstance(frame, bytes)
            parts.append(frame)
            size += len(frame)
        return b"".join(parts)

    def wake(self) -> None:
        """Let the waiting client look for events again."""
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(True)


def _give_up(arrival: asyncio.Future[bool]) -> None:
    if not arrival.done():
        arrival.set_result(False)


class Frame(NamedTuple):
    """An encoded event.

    Attributes:
        data: its bytes.
        digest: the same for events with the same content.
    """

    data: bytes
    digest: str


class _Made:
    """An event with a running or finished encoding."""

    __slots__ = ("at", "raw", "task", "waiting")

    def __init__(self, raw: bytes, task: asyncio.Task[Frame], at: float) -> None:
        self.raw = raw
        self.task = task
        self.at = at
        self.waiting: list[Callable[[Frame | None], object]] = []
        task.add_done_callback(self._tell_all)

    def tell(self, tell: Callable[[Frame | None], object]) -> None:
        """Call a function with the encoded event; with None if encoding failed."""
        tell(None if self.task.cancelled() or self.task.exception() is not None else self.task.result())

    def _tell_all(self, _: asyncio.Task[Frame]) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            self.tell(each)


class Frames:
    """Encoded events, by the record of their job: many clients wait for the same event.

    Args:
        form: returns an event as JSON.

    Attributes:
        made: number of encoded events.
    """

    def __init__(self, form: Callable[[JobEvent], Awaitable[dict[str, Any]]]) -> None:
        self._form = form
        self._made: OrderedDict[bytes, _Made] = OrderedDict()
        self._bytes = 0
        self.made = 0

    def when_made(
        self, data_key: bytes, raw: bytes | None, event: JobEvent, tell: Callable[[Frame | None], object]
    ) -> None:
        """Encode an event, and call each waiting function once.

        Args:
            data_key, raw, event: as for `of`.
            tell: called with the encoded event, or with None if encoding failed.
        """
        made = self._of(data_key, raw or b"", event)
        if made.task.done():
            made.tell(tell)
        else:
            made.waiting.append(tell)

    async def of(self, data_key: bytes, raw: bytes | None, event: JobEvent) -> Frame:
        """Return an event's bytes and digest.

        Args:
            data_key: of the job.
            raw: record of the job in the event; None for a job that is gone.
            event: encoded unless that was done before.
        """
        made = self._of(data_key, raw or b"", event)
        try:
            return made.task.result() if made.task.done() else await asyncio.shield(made.task)
        except JobsError:
            # The redaction rules could not be read: the next client's request reads them again.
            if self._made.get(data_key) is made:
                self._forget(data_key)
            raise

    def _of(self, data_key: bytes, raw: bytes, event: JobEvent) -> _Made:
        found = self._made.get(data_key)
        now = asyncio.get_running_loop().time()
        if found is not None and found.raw == raw and now - found.at <= _KEPT:
            return found
        if found is not None:
            self._forget(data_key)
        made = self._made[data_key] = _Made(raw, asyncio.create_task(self._frame(event)), now)
        self._bytes += len(raw)
        while self._bytes > _MOST_FRAME_BYTES or len(self._made) > _MOST_FRAMES:
            self._forget(next(iter(self._made)))
        return made

    def _forget(self, data_key: bytes) -> None:
        self._bytes -= len(self._made.pop(data_key).raw)

    async def _frame(self, event: JobEvent) -> Frame:
        self.made += 1
        form = await self._form(event)
        # A heartbeat changes the seq alone.
        digest = _digest(wire.dumps({**form, "seq": None}))
        id = f"{form['seq'] or 'removed'}.{digest}"
        return Frame(b"id: %s\nevent: job\ndata: %s\n\n" % (id.encode(), wire.dumps(form)), digest)


def _digest(told: bytes) -> str:
    return blake2b(told, digest_size=_DIGEST_BYTES).hexdigest()


class JobTarget(Target):
    """One job that a client follows."""

    __slots__ = ("_frames", "_is_alone", "_stream", "_was_heard", "said")

    def __init__(self, keys: TypeKeys, id: JobId, stream: Stream, frames: Frames, *, is_alone: bool) -> None:
        super().__init__(keys, id, _NO_MAILBOX)
        self._stream = stream
        self._frames = frames
        self._is_alone = is_alone
        # The digest that the client has of the job: empty for none.
        self.said = ""
        self._was_heard = False

    @property
    def knows_it(self) -> bool:
        """Whether the client has had an event of the job before, perhaps on another connection."""
        return self.reported is not None or bool(self.said)

    def report(self, event: JobEvent) -> None:
        """Queue an event for the client, in place of an unsent one."""
        self.reported = _TOLD
        self.ended = event.state in FINAL
        if event.state is JobState.REMOVED:
            self.raw = None
        if self._stream.keep(self, event):
            self._frames.when_made(self.data_key, self.raw, event, partial(self._stream.made, self, event))

    def fail(self, error: JobsError) -> None:
        """End with an error; at the end of the server, the client reconnects to the next one."""
        if isinstance(error, ServiceClosed | SupervisorFailed):
            self._stream.end()
            return
        problem = b"event: problem\ndata: %s\n\n" % wire.dumps(problems.problem(error))
        is_known = self.reported is None and self.said not in ("", _digest(problem))
        if is_known and isinstance(error, JobNotFound):
            # The job existed at the client's last event of it.
            return self.report(JobEvent(self.keys.type, self.id, JobState.REMOVED, None, None, None))
        self.ended = True
        if self._is_alone and self.reported is None:
            self._stream.refusal = error
            self._stream.end()
            return
        self._stream.put(self, problem)

    async def taken_by_client(self, event: JobEvent | Frame | bytes) -> bytes:
        """Return the bytes of the last event; none if the client knows its content already."""
        is_last = self.ended
        if not self._was_heard:
            self._was_heard = True
            self._stream.heard()
        frame = b""
        if isinstance(event, bytes):
            frame, digest = event, _digest(event)
        else:
            made = event if isinstance(event, Frame) else await self._frames.of(self.data_key, self.raw, event)
            frame, digest = made
        if digest == self.said:
            # The client does not learn of the states in between.
            frame = b""
        self.said = digest
        if is_last:
            self._stream.ended()
        return frame
