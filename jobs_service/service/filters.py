"""Which jobs of a type somebody means: the command line, HTTP and the dashboard have the same filters."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from jobs_service import durations
from jobs_service.errors import RecordDamaged
from jobs_service.model import HistoryKind, Job, JobId, JobType
from jobs_service.names import one_line
from jobs_service.status import Status, status_of

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

STATES: Final = ("ready", "scheduled", "retrying", "running", "succeeded", "failed", "canceled")
BYTES_AT_ONCE: Final = 1 << 18
"""Bytes of jobs that are looked at before anything else on the loop gets its turn: a few milliseconds."""
MOST_ATTEMPTS: Final = 999_999_999
_READ_AT_ONCE: Final = 100
FIELDS: Final = ("state", "prefix", "error", "text", "worker", "older", "younger", "attempts", "data")


class BadFilter(ValueError):
    """What somebody typed is no filter; the message says what to write."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs of a type are meant. Every field that is not empty has to hold.

    Attributes:
        state: one of STATES.
        prefix: with what the id begins.
        error: the class of the last error, as the job has it.
        text: what the message of the last error contains, whatever the case.
        worker: what the name of its last worker contains: host and process id.
        older, younger: how long ago its last event was at least, and at most; as people type durations.
        attempts: how many runs have begun at least.
        data: tests of fields of the data, each `path=value` or `path~part`; a path is names with points between them.
    """

    state: str = ""
    prefix: str = ""
    error: str = ""
    text: str = ""
    worker: str = ""
    older: str = ""
    younger: str = ""
    attempts: str = ""
    data: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any], data: Sequence[str]) -> Filter:
        """Return the filter that a URL or a form says.

        Args:
            given: the fields by name; others are ignored.
            data: the tests of fields of the data.

        Raises:
            BadFilter: a value that none of them can have.
        """
        texts_given = {name: str(given.get(name) or "").strip() for name in FIELDS if name not in ("data", "prefix")}
        found = cls(
            prefix=str(given.get("prefix") or ""), data=tuple(filter(None, map(str.strip, data))), **texts_given
        )
        found.check()
        return found

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Filter:
        """Return a filter from what `to_dict` has returned, or somebody has written in place of it.

        What is misspelled or empty is no filter: left out, it would mean more jobs than somebody has asked for.

        Raises:
            BadFilter: it is none.
        """
        if not isinstance(given, Mapping):
            raise BadFilter(f"{one_line(str(given), 40)} is no filter; write an object, {{}} for every job")
        texts: dict[str, str] = {}
        for name, value in given.items():
            if name not in FIELDS:
                raise BadFilter(f"{one_line(str(name), 40)} is unknown in a filter; there are {', '.join(FIELDS)}")
            if name == "data" or value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise BadFilter(f"{name}: write a text or a number")
            texts[name] = str(value)
            if name != "prefix" and not texts[name].strip():
                raise BadFilter(f"{name} is empty; leave it out if every job is meant")
        tests = [] if given.get("data") is None else given["data"]
        if not isinstance(tests, list) or not all(isinstance(test, str) and test.strip() for test in tests):
            raise BadFilter("data: write an array of texts such as field=value and field~part")
        return cls.of(texts, tests)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without what is empty."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in FIELDS if getattr(self, name)}
        if self.data:
            fields["data"] = list(self.data)
        return fields

    def check(self) -> None:
        """Raise BadFilter for what cannot be."""
        for text in (*(getattr(self, name) for name in FIELDS if name != "data"), *self.data):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise BadFilter(f"{one_line(text, 40)} is not UTF-8") from None
        if self.state and self.state not in STATES:
            raise BadFilter(f"there is no state {one_line(self.state, 40)}; there are {', '.join(STATES)}")
        for name in ("older", "younger"):
            try:
                durations.parsed(getattr(self, name) or "0")
            except ValueError as error:
                raise BadFilter(str(error)) from None
        number = self.attempts
        if number and not (number.isdecimal() and number.isascii() and len(number) <= len(str(MOST_ATTEMPTS))):
            raise BadFilter(f"{one_line(number, 40)} is no number of attempts; write 1, 2, 3 ...")
        for test in self.data:
            if not _parts(test)[0]:
                raise BadFilter(f"{one_line(test, 40)}: write field=value, or field~part")

    @property
    def needs_reading(self) -> bool:
        """Whether jobs have to be read to know which match: the store has no index of what is asked."""
        rest = (self.error, self.text, self.worker, self.older, self.younger, self.attempts, self.data)
        return any(rest)

    def __bool__(self) -> bool:
        return bool(self.to_dict())

    def holds(self, job: Job, now: float) -> bool:
        """Return whether a job matches.

        Args:
            job: the job, without what is secret.
            now: seconds since the epoch.
        """
        try:
            return self._holds(job, now)
        except RecordDamaged:
            return False

    def _holds(self, job: Job, now: float) -> bool:
        if self.state and status_of(job, now) is not Status(self.state):
            return False
        if self.prefix and not _begins(job.id, self.prefix):
            return False
        if self.error or self.text:
            error = job.error
            if error is None or (self.error and error.type != self.error):
                return False
            if self.text.lower() not in error.message.lower():
                return False
        if self.attempts and job.attempts < int(self.attempts):
            return False
        if self.worker and self.worker not in worker_of(job):
            return False
        if self.older or self.younger:
            history = job.history
            if not history:
                return False
            age = now - history[0].at
            if self.older and age < durations.parsed(self.older):
                return False
            if self.younger and age > durations.parsed(self.younger):
                return False
        return all(_says(job.data, test) for test in self.data)


async def matching(
    service: JobsService, type: JobType, wanted: Filter, *, state: str | None = None
) -> AsyncGenerator[Job, None]:
    """Yield all jobs that match, however many, without what is secret.

    One page of them at a time is in memory, and of running ones the ids, because they are to be told once.

    Args:
        service: of the jobs.
        type: of the jobs.
        wanted: which of them.
        state: in place of the filter's, any that `JobsService.page` takes.
    """
    which = state or wanted.state or None
    running: set[JobId] = set()  # a sign of life moves a job behind those that are not read yet
    after: str | None = None
    while True:
        page = await service.page(type, state=which, prefix=wanted.prefix or None, limit=_READ_AT_ONCE, after=after)
        # Read after the jobs, so that it is not older than they are: nobody finds jobs by what they must not see.
        hidden, now = await service.get_redaction(type), time.time()
        size = 0
        for job in map(hidden.job, page.jobs):
            if wanted.holds(job, now) and job.id not in running:
                if which == "running":
                    running.add(job.id)
                yield job
            size += job._record.size()
            if size > BYTES_AT_ONCE:
                size = 0
                await asyncio.sleep(0)
        after = page.next
        if after is None:
            return


def worker_of(job: Job) -> str:
    """Return the name of the worker that has the job, or had it last: host and process id; "" where nothing says so."""
    return next((event.detail for event in job.history if event.kind is HistoryKind.STARTED), "")


def _begins(id: str | bytes, prefix: str) -> bool:
    return id.startswith(prefix.encode()) if isinstance(id, bytes) else id.startswith(prefix)


def _parts(test: str) -> tuple[str, str, str]:
    """Return path, sign and value of a test."""
    places = [(place, sign) for sign in "=~" if (place := test.find(sign)) >= 0]
    if not places:
        return "", "", ""
    place, sign = min(places)
    return test[:place].strip(), sign, test[place + 1 :].strip()


def _says(data: Any, test: str) -> bool:
    path, sign, wanted = _parts(test)
    for name in path.split("."):
        if isinstance(data, dict) and name in data:
            data = data[name]
        elif isinstance(data, list) and name.isdecimal() and len(name) < 8 and int(name) < len(data):
            data = data[int(name)]
        else:
            return False
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return text == wanted if sign == "=" else wanted.lower() in text.lower()
