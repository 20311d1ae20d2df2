"""Adds jobs for a client: all jobs added within one turn of the loop share a request, a line for each job."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from jobs_service import tracing
from jobs_service.client.access import ServerAccess
from jobs_service.errors import JobsError
from jobs_service.http import problems

_MOST_JOBS: Final = 500
_MOST_BYTES: Final = 500_000
"""Most jobs and bytes of one request: well below the limits of a server."""

_Asked: TypeAlias = tuple[bytes, asyncio.Future[Any]]
"""A new job as JSON, and the future of its answer."""


class RemoteAdder:
    """Adds jobs for callers, each job independently; a repeated request adds no job twice.

    Args:
        access: access to the server.
    """

    def __init__(self, access: ServerAccess) -> None:
        self._access = access
        # By path and by the trace of the request.
        self._waiting: dict[tuple[str, tuple[tuple[str, str], ...]], list[_Asked]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def add(self, path: str, body: bytes) -> Any:
        """Return the server's answer for one job.

        Args:
            path: the path of its type's jobs.
            body: the job as JSON.
        """
        self._access.connection.check_open()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        group = path, tuple(tracing.headers().items())
        if group not in self._waiting:
            self._waiting[group] = []
            loop.call_soon(self._send, group)
        self._waiting[group].append((body, answer))
        return await answer

    async def closed(self) -> None:
        """Wait until no request is under way."""
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _send(self, group: tuple[str, tuple[tuple[str, str], ...]]) -> None:
        asked = [each for each in self._waiting.pop(group) if not each[1].done()]
        first = 0
        for part in parts([body for body, _ in asked]):
            task = asyncio.get_running_loop().create_task(self._answer(group[0], asked[first : first + len(part)]))
            first += len(part)
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _answer(self, path: str, asked: Sequence[_Asked]) -> None:
        try:
            found = await self._ask(path, [body for body, _ in asked])
        except Exception as error:
            # A copy for each caller: raising an error adds frames to its traceback.
            found = [copy.copy(error) for _ in asked]
        for (_, answer), each in zip(asked, found, strict=True):
            if answer.done():
                continue
            if isinstance(each, Exception):
                answer.set_exception(each)
            else:
                answer.set_result(each)

    async def _ask(self, path: str, bodies: Sequence[bytes]) -> list[Any]:
        """Return an answer or an error for each job."""
        key = self._access.new_key()
        if len(bodies) == 1:
            return [await self._access.call("POST", path, bodies[0], key=key)]
        answers: list[Any] = await self._access.call("POST", path, b"".join(each + b"\n" for each in bodies), key=key)
        found = [_error_in(form) or form for form in answers]
        if len(found) < len(bodies):  # the server has stopped reading, and its last line says why
            last = found[-1] if found and isinstance(found[-1], JobsError) else JobsError("the answer is not complete")
            found += [copy.copy(last) for _ in range(len(bodies) - len(found))]
        return found[: len(bodies)]


def _error_in(form: Any) -> JobsError | None:
    """Return the error of a refused line; None for an accepted one."""
    return problems.error_of(form["problem"]) if isinstance(form, dict) and "problem" in form else None


def parts(bodies: Sequence[bytes] | Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield the jobs in parts of one request each, and read them lazily."""
    part: list[bytes] = []
    size = 0
    for body in bodies:
        if part and (len(part) == _MOST_JOBS or size + len(body) > _MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(body)
        size += len(body)
    if part:
        yield part
