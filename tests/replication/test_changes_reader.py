"""The reader of changes: it goes on where a feed broke, and gives up on one that never tells anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobs_service.replication import changes
from jobs_service.replication.changes import ChangeQueue, ChangesReader, ThroughSequence
from jobs_service.replication.checkpoints import ReplicationTally
from jobs_service.replication.contract import ReplicationError
from jobs_service.replication.database import HttpDatabase
from jobs_service.replication.endpoint import parse_endpoint
from jobs_service.replication.http import HttpSettings
from jobs_service.replication.options import ReplicationOptions
from tests.replication.server import Fault, Server
from tests.replication.support import LIMIT, asked, write_branch


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(changes, "FIRST_PAUSE", 0.001)
    async with Server() as running:
        for number in range(50):
            write_branch(running.database("db"), f"{number}", 1, "x")
        yield running


async def read(server: Server, stop_after: int = 0, **options: Any) -> tuple[list[str], ReplicationTally]:
    """Read a feed to its end, or until so many rows have come, and return the ids in their order."""
    asked_for = ReplicationOptions.from_data({"source": server.url, "target": server.url, **options})
    tally, ids = ReplicationTally(), []
    queue = ChangeQueue(ThroughSequence(0), 10, 10_000, fills_batches=False)
    source = HttpDatabase(parse_endpoint(f"{server.url}/db"), HttpSettings(retries=0))
    reading = asyncio.create_task(ChangesReader(source, queue, asked_for, tally, 0).run())
    reading.add_done_callback(lambda _: queue.close())
    try:
        async with asyncio.timeout(LIMIT):
            while (batch := await queue.take(5)) is not None:
                ids += [each.id for each in batch.changes]
                if stop_after and len(ids) >= stop_after:
                    return ids, tally
            await reading
            return ids, tally
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        await source.close()


IDS = [f"{number}" for number in range(50)]


async def test_a_feed_that_is_cut_again_and_again_goes_on_where_it_was_cut(server: Server) -> None:
    server.faults.append(Fault("GET /db/_changes", cut=400, times=20))
    ids, _ = await read(server, 50, continuous=True, retries_per_request=0)
    assert sorted(set(ids), key=int) == IDS


async def test_a_feed_that_tells_nothing_is_tried_as_often_as_a_request(server: Server) -> None:
    server.faults.append(Fault("GET /db/_changes", status=503, times=100))
    with pytest.raises(ReplicationError):
        await read(server, continuous=True, retries_per_request=2)
    assert len(asked(server, "_changes")) == 3


async def test_a_continuous_feed_that_is_held_back_is_read_by_longpoll(server: Server) -> None:
    server.faults.append(Fault("feed=continuous", until=asyncio.Event(), times=99))
    ids, _ = await read(server, stop_after=50, continuous=True, connection_timeout=0.1, retries_per_request=2)
    assert ids == IDS
    assert asked(server, "feed=longpoll")
