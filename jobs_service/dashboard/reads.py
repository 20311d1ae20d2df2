"""The reads that all pages share: counts, the last hour, queues, processes, and the sums of all types."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

from jobs_service.dashboard.figures import SPANS, Lately, Span, lately
from jobs_service.durations import rest_after
from jobs_service.errors import JobsError
from jobs_service.model import ProcessInfo
from jobs_service.model.type_state import Interval, QueueState, TypeCounts
from jobs_service.service.failures import Failures, LastHour, last_hour, newest_failures
from jobs_service.service.presence import GONE
from jobs_service.service.queries import together

if TYPE_CHECKING:
    from jobs_service import JobsService, JobType

T = TypeVar("T")

QUICK: Final = 0.02
"""A read that takes fewer seconds is repeated for each request; slower reads are shared for a while."""
_REST: Final = 1.0
"""Least seconds for which a slow read is shared."""
MOST_QUEUES: Final = 100
"""Most types whose queues are read: those with the most ready jobs."""
_PATIENCE: Final = 0.05
"""Seconds that a page waits for the sums of all types, and for usual hours; then it shows the last ones."""
_OLD: Final = 60.0
"""Seconds after which the last ones are not shown any more as the present state."""
_PATIENCE_IF_OLD: Final = 0.2
"""Seconds that a page waits for the present sums when the last ones are so old."""
_AGO: Final = {"hour": 86_400.0, "day": 86_400.0, "week": 604_800.0}
"""Seconds by which the span that each span is compared with lies earlier; the month before is not kept."""
_RECENT: Final = 10.0
"""Seconds after their rest in which the last sums are shown without a wait for new ones."""
_USUAL_FOR: Final = 600.0
_KEPT: Final = 30.0
"""Seconds for which the events of a type's week and month are kept."""
_LEAST_DAYS: Final = 3
_OPEN: Final = 2
"""The newest intervals, which are read again: other clocks may be behind."""


class Usual(NamedTuple):
    """The usual events of an hour at this time of the day: medians of up to seven days.

    Attributes:
        succeeded, failed: numbers of jobs.
        waited, ran: 95th percentiles in seconds.
    """

    succeeded: int
    failed: int
    waited: float
    ran: float


class Reads:
    """Reads for all pages of a server.

    Where reading takes long, a page shows the last values read. They are read once more then, and if they differ, open
    pages are told: another change, at which they would ask again, may be far away.

    Args:
        service: of the jobs.

    Attributes:
        service: of the jobs.
        news: when a value that a page has shown so last turned out to be old, by the monotonic clock.
    """

    def __init__(self, service: JobsService) -> None:
        self.news = -math.inf
        self.service = service
        self._counts: SharedRead[dict[JobType, TypeCounts]] = SharedRead(service.counts)
        self._last_hour: SharedRead[LastHour] = SharedRead(self._read_last_hour, self._tell)
        self._queues: SharedRead[dict[JobType, QueueState]] = SharedRead(self._read_queues, self._tell)
        self._processes: SharedRead[list[ProcessInfo]] = SharedRead(service.processes)
        self._failures: SharedRead[Failures] = SharedRead(self._read_failures, self._tell)
        self._usual: SharedRead[Usual | None] = SharedRead(self._read_usual, self._tell)
        self._lately: dict[tuple[str, JobType], tuple[float, Lately]] = {}
        self._sums = {name: SharedRead(_Sums(self, span), self._tell) for name, span in SPANS.items()}
        self._before = {name: SharedRead(_Sums(self, SPANS[name], ago), self._tell) for name, ago in _AGO.items()}

    async def counts(self, age: float = 0.0) -> dict[JobType, TypeCounts]:
        """Return the counts of all types, some tenths of a second old if there are very many.

        Args:
            age: seconds that they may be old in any case.
        """
        return await self._counts.get(age)

    @property
    def counted_at(self) -> float:
        """When the last counts were read: all that had changed by then is in them."""
        return self._counts.began

    async def last_hour(self) -> LastHour:
        """Return the failures of the last hour, as old as `counts` may be."""
        return await self._last_hour.get()

    async def failures(self) -> Failures:
        """Return failed and retrying jobs of all types by error, as old as `counts` may be; the latest first."""
        return await self._failures.get()

    async def queues(self) -> dict[JobType, QueueState]:
        """Return the queues of the MOST_QUEUES types with the most jobs that wait, as old as `counts` may be."""
        return await self._queues.get()

    async def processes(self) -> list[ProcessInfo]:
        """Return the processes, as old as `counts` may be."""
        return await self._processes.get()

    async def lately(self, types: Sequence[JobType], window: str) -> list[Lately]:
        """Return the recent events of each of these types, without the times of each column.

        Those of a week and of a month are up to _KEPT seconds old.

        Args:
            types: to look at.
            window: of SPANS.
        """
        service, began = self.service, time.monotonic()
        if window not in ("week", "month"):
            return await lately(service, types, window, service.wall_time(), times=False)
        found = {key: each for key, each in self._lately.items() if each[0] >= began - _KEPT}
        left = [type for type in types if (window, type) not in found]
        read = await lately(service, left, window, service.wall_time(), times=False)
        self._lately = found | {(window, type): (began, each) for type, each in zip(left, read, strict=True)}
        return [self._lately[window, type][1] for type in types]

    async def sums(self, window: str) -> list[Interval] | None:
        """Return the events of all types by interval; None until they are counted, at first and after a long pause.

        Args:
            window: of SPANS.
        """
        return await self._sums[window].soon(_PATIENCE_IF_OLD)

    async def sums_before(self, window: str) -> list[Interval] | None:
        """Return the same for an hour yesterday, the day or the week before; None if that is not known."""
        return await self._before[window].soon(_PATIENCE) if window in self._before else None

    async def usual(self) -> Usual | None:
        """Return what usually happens in such an hour, some minutes old; None if that is not known yet."""
        return await self._usual.soon(_PATIENCE, _USUAL_FOR)

    def known_problems(self) -> tuple[int, int]:
        """Return the numbers of failed jobs in the last hour and of silent processes, as last read."""
        hour, processes = self._last_hour.found, self._processes.found
        silent = sum(each.state in GONE for each in processes or ())
        return 0 if hour is None else hour.totals.failed, silent

    def forget(self) -> None:
        """Read all anew for the next page: its user has changed something."""
        for each in (self._counts, self._last_hour, self._failures, self._queues, self._processes):
            each.forget()

    async def close(self) -> None:
        """End what reads in the background."""
        followed = self._last_hour, self._failures, self._queues, self._usual
        for each in (*followed, *self._sums.values(), *self._before.values()):
            await cast(SharedRead[Any], each).close()

    def _tell(self) -> None:
        self.news = time.monotonic()

    async def _read_last_hour(self) -> LastHour:
        return await last_hour(self.service, await self.counts())

    async def _read_failures(self) -> Failures:
        hour = await self.last_hour()
        recent = {*hour.by_type, *(outage.type for outage in hour.outages)}
        return await newest_failures(self.service, await self.counts(), recent=recent)

    async def _read_usual(self) -> Usual | None:
        types, hour = [*await self.counts()], int((self.service.wall_time() - 1800) // 3600)
        days = [
            (await together(self.service._access, types, "hour", hour - 24 * ago, hour - 24 * ago))[0]
            for ago in range(1, 8)
        ]
        happened = [day for day in days if day.totals.started]
        if len(happened) < _LEAST_DAYS:
            return None
        succeeded, failed, waited, ran = zip(
            *(
                (
                    day.totals.succeeded,
                    day.totals.failed,
                    day.waited.percentile(95) or 0.0,
                    day.ran.percentile(95) or 0.0,
                )
                for day in happened
            ),
            strict=True,
        )
        return Usual(round(median(succeeded)), round(median(failed)), median(waited), median(ran))

    async def _read_queues(self) -> dict[JobType, QueueState]:
        counts = await self.counts()
        types = sorted((type for type, each in counts.items() if each.pending), key=_ready_first(counts))[:MOST_QUEUES]
        return dict(zip(types, await self.service.queue_states(types), strict=True))


def _ready_first(counts: Mapping[JobType, TypeCounts]) -> Callable[[JobType], tuple[int, int]]:
    return lambda type: (-counts[type].ready, -counts[type].pending)


class SharedRead(Generic[T]):
    """A value that is read once for all simultaneous callers if reading it takes long.

    Args:
        read: reads it.
        tell: called when a page was given an old value, and the next one differs, or its read began before the page
            asked, and so may lack the change that the page is to show. None for a value that is not read once more.

    Attributes:
        found, began: the last one, and when its read began.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], tell: Callable[[], object] | None = None) -> None:
        self._read = read
        self._tell = tell
        self.found: T | None = None
        self.began = self._read_at = self._good_until = self._forgotten = self._shown_at = -math.inf
        self._reading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def forget(self) -> None:
        """Have the next call of `get` read it anew."""
        self._forgotten = time.monotonic()

    async def get(self, age: float = 0.0) -> T:
        """Return the value; the last one if it was read less than `age` seconds ago, or rests after a slow read."""
        async with self._reading:
            began = time.monotonic()
            is_good = began < self._good_until or began - self._read_at < age
            if not is_good or self.began <= self._forgotten:
                before, self.found = self.found, await self._read()
                self.began, self._read_at = began, (ended := time.monotonic())
                took = ended - began
                self._good_until = -math.inf if took < QUICK else ended + max(rest_after(took), _REST)
                was_shown = self._shown_at > -math.inf
                if self._tell is not None and was_shown and (self.found != before or began < self._shown_at):
                    self._tell()
                self._shown_at = -math.inf
            elif self._tell is not None and not age:
                self._begin(age)
                self._shown_at = began
            return cast(T, self.found)  # it has been read, and is None only if T may be

    async def soon(self, patience: float, age: float = 0.0) -> T | None:
        """Return the value; if reading it takes long the last one; None without any that is recent.

        Args:
            patience: seconds to wait if the last one is old.
            age: as for `get`.
        """
        asked = time.monotonic()
        task = self._begin(age)
        if asked - self._good_until > _RECENT:
            await asyncio.wait([task], timeout=patience if self._is_old(age) else _PATIENCE)
        if not task.done():
            self._shown_at = max(self._shown_at, asked)
        return None if self._is_old(age) else self.found

    def _is_old(self, age: float) -> bool:
        return time.monotonic() - self._read_at > max(age, _OLD)

    def _begin(self, age: float) -> asyncio.Task[None]:
        """Begin to read it in the background, unless that is done already."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._get_in_time(age), name="read for pages")
        return self._task

    async def _get_in_time(self, age: float) -> None:
        while (rest := self._good_until - time.monotonic()) > 0:  # noqa: ASYNC110 - others may read it meanwhile
            await asyncio.sleep(rest)
        with suppress(JobsError):  # the page's own reads say so
            await self.get(age)

    async def close(self) -> None:
        """End the read in the background."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


class _Sums:
    """Reads the events of all types by interval; intervals that are over once."""

    def __init__(self, shared: Reads, span: Span, ago: float = 0.0) -> None:
        self._shared, self._span, self._ago = shared, span, ago
        self._found: dict[int, Interval] = {}
        self._read_to: int | None = None

    async def __call__(self) -> list[Interval]:
        service, span = self._shared.service, self._span
        last = int((service.wall_time() - self._ago) // span.interval)
        first = last - span.intervals + 1
        begin = first if self._read_to is None else max(first, self._read_to - _OPEN + 1)
        found = await together(service._access, [*await self._shared.counts()], span.resolution, begin, last)
        kept = {number: each for number, each in self._found.items() if first <= number < begin}
        self._found, self._read_to = kept | dict(enumerate(found, begin)), last
        return [self._found[number] for number in range(first, last + 1)]
