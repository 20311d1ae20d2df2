"""Filters on a type's jobs, and the matching jobs page by page; all interfaces use these filters."""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from jobs_service import durations
from jobs_service.errors import RecordDamaged
from jobs_service.json_data import same
from jobs_service.model import HistoryKind, Job, JobError, JobId, JobType
from jobs_service.model.job import MEANT, Status, status_of
from jobs_service.names import one_line
from jobs_service.redaction import Redaction
from jobs_service.service.queries import redactor

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

BYTES_AT_ONCE: Final = 1 << 18
"""Bytes of records between two yields to the event loop: a few milliseconds of work."""
READ_AT_ONCE: Final = 200
"""Jobs per read, unless the caller wants fewer."""
_MOST_SHOWN: Final = 40


class BadFilter(ValueError):
    """An invalid filter; the message says how to write one."""


@dataclass(frozen=True, slots=True)
class DataTest:
    """A test of a field of a job's data.

    Attributes:
        path: names separated by dots; numbers are list indexes.
        sign: "=" equals the text, "~" contains it, "is" equals the JSON value with its types.
        value: a text; for "is" any JSON.
    """

    path: str
    sign: Literal["=", "~", "is"]
    value: Any

    def __str__(self) -> str:
        if self.sign == "is":
            return f"{self.path} = {json.dumps(self.value, ensure_ascii=False)}"
        return f"{self.path}{self.sign}{self.value}"

    def holds(self, data: Any) -> bool:
        """Return whether a job's data passes the test."""
        for name in self.path.split("."):
            if isinstance(data, dict) and name in data:
                data = data[name]
            elif isinstance(data, list) and name.isdecimal() and len(name) < 8 and int(name) < len(data):
                data = data[int(name)]
            else:
                return False
        if self.sign == "is":
            return same(data, self.value)
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        return bool(text == self.value) if self.sign == "=" else self.value.lower() in text.lower()


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects jobs of a type that satisfy all given fields; None and an empty `data` are not given.

    Attributes:
        state: a key of MEANT, the job's state for people. A failed job is "running" while its retry runs.
        prefix: start of the id; an id of bytes starts with no text.
        error: class of the last error.
        text: part of the last error's message, ignoring case.
        signature: of the last error; see `signature_of`.
        worker: part of the last worker's name: host and process id.
        older, younger: least and most seconds since the last event.
        attempts: least number of begun runs.
        added_before, added_after: bounds for the time at which the job was last added or resubmitted, seconds since the
            epoch; the second one is inclusive.
        data: tests of its data.
    """

    state: str | None = None
    prefix: str | None = None
    error: str | None = None
    text: str | None = None
    signature: str | None = None
    worker: str | None = None
    older: float | None = None
    younger: float | None = None
    attempts: int | None = None
    added_before: float | None = None
    added_after: float | None = None
    data: tuple[DataTest, ...] = ()

    @classmethod
    def of(cls, given: Any) -> Self:
        """Parse a filter from JSON or from options of a command.

        Unknown and empty fields are errors: ignoring them would select more jobs than requested.

        Args:
            given: an object of fields; durations and numbers may be texts, `data` is an array of texts such as
                "field=value" and "field~part", or an object of fields and values.

        Raises:
            BadFilter: an invalid filter.
        """
        if not isinstance(given, Mapping):
            raise BadFilter(f"{_shown(given)} is no filter; write an object, {{}} for every job")
        if unknown := next((name for name in given if name not in FIELDS), None):
            raise BadFilter(f"{_shown(unknown)}: unknown; allowed are {', '.join(FIELDS)}")
        try:
            return cls(**{name: _READ[name](name, value) for name, value in given.items()})
        except RecursionError:
            raise BadFilter("data: nested too deeply") from None

    @classmethod
    def of_address(cls, given: Mapping[str, str], data: Sequence[str]) -> Self:
        """Parse a filter from the address of a page; raises like `of`.

        Args:
            given: its fields by name. Unknown and empty fields are ignored: browsers send empty ones with every form.
            data: the tests of data fields.
        """
        texts: dict[str, Any] = {name: given[name] for name in FIELDS if name != "data" and given.get(name, "").strip()}
        tests = [test for test in data if test.strip()]
        return cls.of({**texts, "data": tests} if tests else texts)

    @classmethod
    def of_form(cls, sent: Sequence[tuple[str, str]]) -> Self:
        """Parse a filter from the form of a bulk action; raises like `of`, also for empty fields."""
        texts: dict[str, Any] = {name: value for name, value in sent if name in FIELDS and name != "data"}
        tests = [value for name, value in sent if name == "data"]
        return cls.of({**texts, "data": tests} if tests else texts)

    def to_dict(self) -> dict[str, Any]:
        """Return the given fields as plain data for `of`."""
        found = {name: getattr(self, name) for name in FIELDS if name != "data" and getattr(self, name) is not None}
        if self.has_values:
            found["data"] = {test.path: test.value for test in self.data}
        elif self.data:
            found["data"] = [*map(str, self.data)]
        return found

    @property
    def has_values(self) -> bool:
        """Whether the filter tests for JSON values, which an address cannot express."""
        return any(test.sign == "is" for test in self.data)

    @property
    def needs_reading(self) -> bool:
        """Whether jobs must be read to find the matching ones: the store selects by state and prefix only."""
        return not self.to_dict().keys() <= {"state", "prefix"}

    def __bool__(self) -> bool:
        return bool(self.to_dict())

    def holds(self, job: Job, now: float) -> bool:
        """Return whether a job matches.

        Args:
            job: the redacted job: secrets must not influence a search.
            now: seconds since the epoch.
        """
        try:
            return self._holds(job, now)
        except RecordDamaged:
            return False

    def _holds(self, job: Job, now: float) -> bool:
        status = status_of(job, now)
        if self.state is not None and status not in MEANT[self.state]:
            return False
        if self.prefix is not None and not (isinstance(job.id, str) and job.id.startswith(self.prefix)):
            return False
        if status is Status.UNREADABLE:
            return not self.needs_reading  # nothing else can be said of it
        return (
            self._holds_of_error(job)
            and (self.attempts is None or job.attempts >= self.attempts)
            and (self.worker is None or self.worker in worker_of(job))
            and self._holds_of_times(job, now)
            and (not self.data or all(test.holds(job.data) for test in self.data))
        )

    def _holds_of_error(self, job: Job) -> bool:
        if self.error is None and self.text is None and self.signature is None:
            return True
        error = job.error
        if self.signature is not None and signature_of(error) != self.signature:
            return False
        if self.error is None and self.text is None:
            return True
        return (
            error is not None
            and (self.error is None or error.type == self.error)
            and (self.text is None or self.text.lower() in error.message.lower())
        )

    def _holds_of_times(self, job: Job, now: float) -> bool:
        if self.older is self.younger is self.added_before is self.added_after is None:
            return True
        history = job.history
        if not history:
            return False
        age = now - history[0].at
        # The record of a job with a cut history tells only that it was added before the oldest event.
        added = next((event.at for event in history if event.kind is HistoryKind.ADDED), history[-1].at)
        return (
            (self.older is None or age >= self.older)
            and (self.younger is None or age <= self.younger)
            and (self.added_before is None or added < self.added_before)
            and (self.added_after is None or added >= self.added_after)
        )


FIELDS: Final = tuple(field.name for field in fields(Filter))


@dataclass(frozen=True, slots=True)
class Selected:
    """A page of matching jobs.

    Attributes:
        jobs: redacted.
        read: number of jobs read to find them.
        next: cursor of the next page; None at the end.
        rules: the type's redaction.
    """

    jobs: list[Job]
    read: int
    next: str | None
    rules: Redaction


async def pages(
    service: JobsService,
    type: JobType,
    wanted: Filter,
    *,
    read: int = READ_AT_ONCE,
    most: int | None = None,
    after: str | None = None,
    newest_first: bool = False,
    by_time: bool = False,
    now: float | None = None,
    meant: Callable[[Job], bool] | None = None,
) -> AsyncGenerator[Selected]:
    """Yield any number of matching jobs, page by page.

    One page at a time is in memory. For running jobs the ids are kept as well, since a heartbeat moves a job behind the
    unread ones: each job is found once.

    Args:
        service: of the jobs.
        type: of the jobs.
        wanted: selects the jobs.
        read: most jobs per read.
        most: limit of yielded jobs in total; None for all.
        after: `next` of an earlier page with otherwise the same arguments; None to begin.
        newest_first: whether to read in reverse order.
        by_time: whether to read in the order of last events, as for JobsService.page.
        now: time for the filter's ages, seconds since the epoch; None for the time of each read.
        meant: further test, called with each redacted job that matches; None for no test.

    Raises:
        JobsError: as JobsService.page.
    """
    met: set[JobId] = set()
    left = math.inf if most is None else most
    # If the store itself selects the jobs, read no more than wanted.
    size = read if wanted.needs_reading or meant is not None else int(min(read, left))
    while True:
        found = await service.page(
            type,
            state=wanted.state,
            prefix=wanted.prefix,
            limit=size,
            after=after,
            newest_first=newest_first,
            by_time=by_time,
        )
        # Read after the jobs, so that it is not older than they are.
        rules = await service.get_redaction(type)
        at = service.wall_time() if now is None else now
        jobs: list[Job] = []
        places: list[int] = []
        bytes_seen = 0
        for place, raw in enumerate(found.jobs):
            job = rules.job(raw)
            if wanted.holds(job, at) and job.id not in met and (meant is None or meant(job)):
                jobs.append(job)
                places.append(place)
            bytes_seen += raw._record.size()
            if bytes_seen > BYTES_AT_ONCE:
                bytes_seen = 0
                await asyncio.sleep(0)
        if len(jobs) > left:
            size = places[int(left) - 1] + 1  # so that the page's cursor stands right behind its last job
            continue
        left -= len(jobs)
        if wanted.state == Status.RUNNING:
            met.update(job.id for job in jobs)
        yield Selected(jobs, len(found.jobs), found.next, rules)
        after = found.next
        if after is None or left <= 0:
            return


async def matching(service: JobsService, type: JobType | None, wanted: Filter) -> AsyncGenerator[Job]:
    """Yield all matching jobs, redacted; of all types, in key order, if type is None."""
    if type is not None or wanted.prefix is not None:  # the store finds a prefix within a type
        for one in [type] if type is not None else await service.counts():
            async with aclosing(pages(service, one, wanted, read=READ_AT_ONCE)) as found:
                async for page in found:
                    for job in page.jobs:
                        yield job
        return
    async with aclosing(service.list(state=wanted.state)) as listed:
        some: list[Job] = []
        async for job in listed:
            some.append(job)
            if len(some) == READ_AT_ONCE:
                for each in await _shown_of(service, some, wanted):
                    yield each
                some = []
        for each in await _shown_of(service, some, wanted):
            yield each


async def newest(service: JobsService, type: JobType | None, wanted: Filter, most: int) -> list[Job]:
    """Return the matching jobs, redacted, with the latest last events, the latest first.

    The store orders failed jobs of a type by time. Among others, all jobs are read, and `most` of them kept in memory.
    """
    if type is not None and wanted.state == Status.FAILED:
        async with aclosing(pages(service, type, wanted, most=most, newest_first=True)) as found:
            return [job async for page in found for job in page.jobs]
    kept: list[tuple[float, int, Job]] = []
    async with aclosing(matching(service, type, wanted)) as jobs:
        number = 0
        async for job in jobs:
            number -= 1  # of several at the same time those that were read first are kept, and no job is compared
            (heapq.heappush if len(kept) < most else heapq.heappushpop)(kept, (_last_event(job), number, job))
    return [job for _, _, job in sorted(kept, reverse=True)]


def _last_event(job: Job) -> float:
    try:
        return job.history[0].at if job.history else -math.inf
    except RecordDamaged:
        return -math.inf


async def _shown_of(service: JobsService, some: list[Job], wanted: Filter) -> list[Job]:
    shown = map(await redactor(some, service.get_redaction), some)
    now = service.wall_time()
    return [job for job in shown if wanted.holds(job, now)]


_VARIES: Final = re.compile(
    r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*|\d+(?:[.:,]\d+)*|'[^']*'|\"[^\"]*\"|[\ud800-\udfff]+"
)
"""Variable parts of error messages, and lone surrogates, which UTF-8 cannot encode."""
_LONGEST_SIGNATURE: Final = 400


def message_of(error: JobError) -> str:
    """Return the first line of an error's message, with … for its variable parts."""
    return one_line("…".join(_VARIES.split(error.message.strip().partition("\n")[0][:300])), 160)


def signature_of(error: JobError | None) -> str:
    """Return the common signature of jobs that failed in the same way: the error's class and its `message_of`.

    Args:
        error: last error of a job; None if none was kept.
    """
    if error is None:
        return "no error was kept"
    return one_line(f"{error.type}: {message_of(error)}", _LONGEST_SIGNATURE)


def worker_of(job: Job) -> str:
    """Return the name of a job's present or last worker: host and process id; "" if unknown."""
    return next((event.detail for event in job.history if event.kind is HistoryKind.STARTED), "")


# Parsing


def _shown(value: Any) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value, default=str), _MOST_SHOWN)


def _text(name: str, value: Any) -> str:
    """Return the value as text; accepts numbers, since scripts may write them."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadFilter(f"{name}: {_shown(value)}: write a text, or leave it out if every job is meant")
    text = str(value)
    if not text.strip():
        raise BadFilter(f"{name} is empty; leave it out if every job is meant")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadFilter(f"{name}: {_shown(text)} is not UTF-8") from None
    return text


def _word(name: str, value: Any) -> str:
    return _text(name, value).strip()


def _state(name: str, value: Any) -> str:
    text = _word(name, value)
    if text not in MEANT:
        raise BadFilter(f"{name}: {_shown(text)} is no state; allowed are {', '.join(MEANT)}")
    return text


def _duration(name: str, value: Any) -> float:
    text = _word(name, value)
    try:
        return _number(value) if isinstance(value, int | float) else durations.parsed(text)
    except (ValueError, OverflowError):
        raise BadFilter(f"{name}: {_shown(text)!r} is no duration; write 90, 30s, 10m, 1h30m or 2d") from None


def _number(value: float) -> float:
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError
    return seconds


def _attempts(name: str, value: Any) -> int:
    text = _word(name, value)
    if not (text.isdecimal() and text.isascii() and len(text) < 300):
        raise BadFilter(f"{name}: {_shown(text)} is no number of attempts; write 0, 1, 2, 3 ...")
    return int(text)


def _time(name: str, value: Any) -> float:
    text = _word(name, value)
    try:
        seconds = float(text)
    except ValueError:
        seconds = _seconds_of(text)
    if not math.isfinite(seconds):
        raise BadFilter(f"{name}: {_shown(text)} is no time; write 2026-11-22T22:00:00Z, or seconds since the epoch")
    return seconds


def _seconds_of(text: str) -> float:
    for each in (text, text.replace(" ", "+")):  # an unencoded + in an address
        try:
            date = datetime.fromisoformat(each)
            return date.timestamp() if date.tzinfo is not None else math.nan
        except (ValueError, OverflowError):
            continue
    return math.nan


def _data(name: str, value: Any) -> tuple[DataTest, ...]:
    allowed = "write texts such as field=value and field~part, or an object of fields and values"
    if not isinstance(value, list | dict):
        raise BadFilter(f"{name}: {_shown(value)}: {allowed}")
    if not value:
        raise BadFilter(f"{name} is empty; leave it out if every job is meant")
    if isinstance(value, dict):
        if not all(isinstance(path, str) and path.strip() for path in value):
            raise BadFilter(f"{name}: a field has no name; {allowed}")
        return tuple(DataTest(path, "is", each) for path, each in value.items())
    return tuple(_test(name, each) for each in value)


def _test(name: str, value: Any) -> DataTest:
    text = _word(name, value)
    places = [(place, sign) for sign in ("=", "~") if (place := text.find(sign)) >= 0]
    place, sign = min(places, default=(0, "="))
    path = text[:place].strip()
    if not path:
        raise BadFilter(f"{name}: {_shown(text)}: write field=value, or field~part")
    return DataTest(path, "=" if sign == "=" else "~", text[place + 1 :].strip())


_READ: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "state": _state,
    "prefix": _text,
    "error": _word,
    "text": _word,
    "signature": _word,
    "worker": _word,
    "older": _duration,
    "younger": _duration,
    "attempts": _attempts,
    "added_before": _time,
    "added_after": _time,
    "data": _data,
}
