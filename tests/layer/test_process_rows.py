"""Rows of processes: what is written is read, what has ended is told and removed, nobody asks who is not there."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from jobs_service import JobsService, ProcessGone, ProcessState
from jobs_service.layer import rows as process_rows
from jobs_service.layer.rows import KEPT_FOR, MISSED, ProcessRow
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import ProcessAction, ProcessRequest
from jobs_service.service.presence import all_rows
from jobs_service.sources import Sources
from tests.layer.processes import process_row

ID = "0123456789ab"
NOW = 1_000_000.0


class Rows:
    """The rows of a store."""

    def __init__(self, jobs: JobsService) -> None:
        self.jobs = jobs

    async def do(self, operation: Callable[[UnitOfWork], Awaitable[Any]]) -> None:
        """Do something in a transaction."""
        await self.jobs._access.transact(operation)

    async def write(self, *rows: ProcessRow) -> None:
        """Write rows."""

        async def write(unit: UnitOfWork) -> None:
            for row in rows:
                process_rows.write(unit, row)

        await self.do(write)

    async def read(self) -> list[ProcessRow]:
        """Return all rows."""
        return (await all_rows(self.jobs._access.read, self.jobs._context))[0]

    async def clean(self, dead: Collection[bytes] = ()) -> None:
        """Remove processes that have ended."""
        ids = process_rows.to_remove(await self.read(), NOW, dead)
        await self.do(lambda unit: process_rows.remove_ended(unit, ids, dead))

    async def ask(self, action: ProcessAction, id: str = ID) -> None:
        """Ask something of a process."""
        request = ProcessRequest(action, "ada", NOW)
        await self.do(lambda unit: process_rows.ask(unit, id, request))

    async def asked(self) -> list[ProcessAction | None]:
        """Return what each process was asked."""
        requests = [row.info.request for row in await self.read()]
        return [None if each is None else each.action for each in requests]


@pytest.fixture
async def rows() -> AsyncIterator[Rows]:
    """A store without processes, at a fixed time."""
    async with JobsService("memory:", supervise=False, sources=Sources(wall_time=lambda: NOW)) as jobs:
        yield Rows(jobs)


async def test_a_row_is_read_as_it_was_written(rows: Rows) -> None:
    row = process_row(ID, instance=bytes(8), unnamed=3, host="<b>\n\x00\u202e")
    await rows.write(row)
    assert await rows.read() == [row]


async def test_what_somebody_has_asked_is_read_with_the_process_and_removed_with_it(rows: Rows) -> None:
    await rows.write(process_row(ID), process_row("f" * 12))
    await rows.ask(ProcessAction.QUIET)
    assert await rows.asked() == [ProcessAction.QUIET, None]

    async def remove(unit: UnitOfWork) -> None:
        process_rows.remove(unit, ID)

    await rows.do(remove)
    await rows.write(process_row(ID))  # the same id again: nothing is left of what was asked
    assert await rows.asked() == [None, None]


async def test_the_newest_request_counts_but_a_stop_stays(rows: Rows) -> None:
    await rows.write(process_row(ID))
    for action in (ProcessAction.QUIET, ProcessAction.RESUME, ProcessAction.STOP):
        await rows.ask(action)
        assert await rows.asked() == [action]
    await rows.ask(ProcessAction.STOP)
    for action in (ProcessAction.QUIET, ProcessAction.RESUME):
        with pytest.raises(ProcessGone, match="asked to stop before"):
            await rows.ask(action)
    assert await rows.asked() == [ProcessAction.STOP]


def test_a_process_is_silent_after_missed_heartbeats_and_dead_when_the_system_says_so() -> None:
    row = process_row(ID, heard=NOW)
    late = (MISSED + 1) * row.period
    assert row.as_of(NOW + late, ()).state is ProcessState.RUNNING
    assert row.as_of(NOW + late + 1, ()).state is ProcessState.SILENT
    assert row.as_of(NOW - 1e6, ()).state is ProcessState.RUNNING  # its clock is ahead
    known = replace(row, instance=b"12345678")
    assert known.as_of(NOW + 1e6, {b"other"}).state is ProcessState.RUNNING  # stopped, but it lives
    assert known.as_of(NOW, {b"12345678"}).state is ProcessState.DEAD


async def test_one_that_is_heard_of_again_meanwhile_stays(rows: Rows) -> None:
    await rows.write(process_row(ID, heard=NOW - KEPT_FOR - 1))
    ids = process_rows.to_remove(await rows.read(), NOW, ())
    assert ids == [ID]
    await rows.write(process_row(ID, heard=NOW))
    await rows.do(lambda unit: process_rows.remove_ended(unit, ids, ()))
    assert [row.info.id for row in await rows.read()] == [ID]


@pytest.mark.parametrize(
    "change",
    [
        {"state": "dead and buried"},
        {"pid": "1"},
        {"pid": True},
        {"host": 7},
        {"worker": "\ud800"},
        {"heard": 1e300},
        {"heard": "soon"},
        {"handlers": [["json:{", 1, 1]]},
        {"handlers": [["email", -1, 1]]},
        {"instance": "xyz"},
        {"period": math.nan},
        {"outboxes": [["shop", 1, math.inf, 0, ""]]},
    ],
)
async def test_what_is_no_process_is_left_out(rows: Rows, change: dict[str, Any]) -> None:
    await rows.write(process_row("f" * 12))
    key = process_rows._key(rows.jobs._access.keyspace, process_rows.PROCESSES, ID)

    async def spoil(unit: UnitOfWork) -> None:
        unit.transaction.set(key, json.dumps({**json.loads(process_row(ID).encode()), **change}).encode())

    await rows.do(spoil)
    assert [row.info.id for row in await rows.read()] == ["f" * 12]
