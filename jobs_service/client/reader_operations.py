"""The operations of a client that read jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, TypeAlias

from jobs_service import names
from jobs_service.arguments import MOST_AT_ONCE, check_limit, check_page_size, check_positive, check_state, to_seconds
from jobs_service.client.access import ServerAccess, check_id
from jobs_service.client.connection import Lost
from jobs_service.errors import InvalidJob, StoreUnavailable, shown
from jobs_service.http import problems, wire
from jobs_service.model import Job, JobId, JobState, JobType, RunAt
from jobs_service.model.counts import Interval, JobsPage, TypeCounts

# Inside a class that has a method `list`, the builtin goes by these names.
_Ids: TypeAlias = list[JobId]
_Jobs: TypeAlias = list[Job]
_Intervals: TypeAlias = list[Interval]


class RemoteReaderOperations:
    """The part of JobsClient for readers of jobs."""

    _access: ServerAccess

    async def get(self, type: JobType, id: JobId) -> Job:
        """Return a job without its secret fields, unless this client runs the job; see JobsService.get."""
        return self._access.read(wire.job_of, await self._access.get(type, id))

    async def list(
        self, type: JobType | None = None, *, state: JobState | str | None = None, page_size: int = 1000
    ) -> AsyncGenerator[Job, None]:
        """Yield jobs in key order while the server reads them; see JobsService.list.

        Args:
            type, state: as for JobsService.list.
            page_size: without effect, as the server chooses its page size.

        Raises:
            StoreUnavailable: the connection was lost; the jobs until then are valid.
        """
        path = "/v1/jobs" if type is None else self._access.of_type(type, "/jobs")
        check_state(state, 0.0)
        check_page_size(page_size)
        params = {} if state is None else {"state": str(state)}
        headers = {"Accept": "application/x-ndjson"}
        try:
            async with self._access.connection.stream("GET", path, params=params, headers=headers) as chunks:
                rest = b""
                if chunks is not None:
                    async for chunk in chunks:
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in lines:
                            if line:
                                yield self._access.read(_job_of_line, line)
                if rest:
                    raise StoreUnavailable(f"{self._access.connection.url} has ended a list within a job")
        except Lost as lost:
            raise lost.error from None

    async def active_ids(self, type: JobType) -> _Ids:
        """Return the ids of the type's running jobs, the longest silent first."""
        found = await self._access.call("GET", self._access.of_type(type, "/active"))
        return self._access.read(lambda form: [wire.name_of(id) for id in form["ids"]], found)

    async def pending_count(self, type: JobType, *, due_by: RunAt | None = None, limit: int | None = None) -> int:
        """Return the number of pending jobs of a type; see JobsService.pending_count."""
        path = self._access.of_type(type, "/pending")
        params = {}
        if (due := to_seconds(due_by, "due_by")) is not None:
            params["due_by"] = str(wire.time(due))
        if (most := check_limit(limit)) is not None:
            params["limit"] = str(most)
        found = await self._access.call("GET", path, params=params)
        return self._access.read(lambda form: int(form["count"]), found)

    async def counts(self, type: JobType | None = None) -> dict[JobType, TypeCounts]:
        """Return the counts of types; see JobsService.counts."""
        if type is None:
            found = await self._access.call("GET", "/v1/counts")
            return self._access.read(
                lambda form: {wire.name_of(each["type"]): wire.counts_of(each) for each in form["types"]}, found
            )
        found = await self._access.call("GET", self._access.of_type(type, "/counts"))
        return self._access.read(lambda form: {} if form is None else {type: wire.counts_of(form)}, found)

    async def throughput(
        self, type: JobType, *, since: RunAt, until: RunAt | None = None, resolution: str = "minute"
    ) -> _Intervals:
        """Return the events of a type's jobs by minute or by hour; see JobsService.throughput."""
        path = self._access.of_type(type, "/throughput")
        if since is None or resolution not in ("minute", "hour"):
            raise InvalidJob(f"since={shown(since)}, resolution={shown(resolution)}: a time, and 'minute' or 'hour'")
        params = {"since": str(wire.time(to_seconds(since, "since"))), "resolution": resolution}
        if until is not None:
            params["until"] = str(wire.time(to_seconds(until, "until")))
        found = await self._access.call("GET", path, params=params)
        return self._access.read(lambda form: [wire.interval_of(each) for each in form["intervals"]], found)

    async def page(
        self,
        type: JobType,
        *,
        state: JobState | str | None = None,
        limit: int = 100,
        after: str | None = None,
        newest_first: bool = False,
        prefix: JobId | None = None,
    ) -> JobsPage:
        """Return a page of a type's jobs; see JobsService.page."""
        path = self._access.of_type(type, "/jobs")
        check_state(state, 0.0)
        left = check_positive("limit", limit)
        params: dict[str, str] = {}
        if state is not None:
            params["state"] = str(state)
        if after is not None:
            params["after"] = after
        if newest_first:
            params["newest_first"] = "true"
        if prefix is not None:
            check_id(type, prefix)
            params["prefix"] = names.shown(prefix)
        jobs: _Jobs = []
        while True:  # a server gives no more at once
            found = await self._access.call("GET", path, params={**params, "limit": str(min(left, MOST_AT_ONCE))})
            page = self._access.read(wire.jobs_page_of, found)
            jobs += page.jobs
            left -= len(page.jobs)
            if page.next is None or len(page.jobs) < MOST_AT_ONCE or not left:
                return JobsPage(jobs, page.next)
            params["after"] = page.next

    async def oldest_ready(self, type: JobType) -> Job | None:
        """Return the longest ready job of a type; None without ready jobs."""
        found = await self._access.call("GET", self._access.of_type(type, "/oldest"))
        return self._access.read(lambda form: None if form["job"] is None else wire.job_of(form["job"]), found)


def _job_of_line(line: bytes) -> Any:
    """Return the job in a line of a list; raise the error of a line that reports one."""
    form = wire.loads(line)
    if "problem" in form:
        raise problems.error_of(form["problem"])
    return wire.job_of(form)
