"""Filtered replications whose source changes and nothing matches: the checkpoint moves all the same, past no match."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from jobs_service.replication import changes, pipeline, replicate
from jobs_service.replication.contract import ReplicationError
from jobs_service.replication.http import HttpSettings
from tests.replication.jobs import ends, running
from tests.replication.server import Oddities, Server
from tests.replication.support import LIMIT, Replication, asked, place, write_branch
from tests.replication.test_chaos import fault

FILTERS: list[dict[str, Any]] = [
    {"doc_ids": [f"wanted {number}" for number in range(40)]},
    {"selector": {"kind": "wanted"}},
    {"filter": "app/wanted"},
]
QUICK: dict[str, Any] = {"continuous": True, "checkpoint_interval": 0.05, "connection_timeout": 1.5}
"""A quiet feed shows that it is alive twice a second."""


def is_wanted(document: dict[str, Any], _: object = None) -> bool:
    return document.get("kind") == "wanted"


def write(server: Server, kind: str, first: int, last: int) -> None:
    for number in range(first, last):
        write_branch(server.databases["db"], f"{kind} {number}", 1, "x", kind=kind)


def checkpoint(server: Server) -> int:
    """Return how far the checkpoint on a server says that the source was read."""
    return max((place(log["source_last_seq"]) for log in server.databases["db"].local.values()), default=0)


def read_from(server: Server) -> list[int]:
    """Return the sequences from which a server's feeds were asked for."""
    return [int(each) for each in re.findall(r"since=(?:%22)?(\d+)", " ".join(asked(server, "_changes")))]


async def until_checkpoint(target: Server, sequence: int) -> None:
    while checkpoint(target) < sequence:
        await target.databases["db"].changed.wait()


@asynccontextmanager
async def pair(**oddities: Any) -> AsyncIterator[tuple[Server, Server]]:
    filters = {"app/wanted": is_wanted}
    async with Server(Oddities(filters=filters, **oddities)) as source, Server(Oddities(**oddities)) as target:
        write_branch(source.database("db"), "_design/app", 1, "x", filters={"wanted": "code"})
        target.database("db")
        yield source, target


@pytest.mark.parametrize("opaque_sequences", [True, False])
@pytest.mark.parametrize("which", FILTERS, ids=["doc_ids", "selector", "filter"])
async def test_the_checkpoint_of_a_continuous_one_moves(which: dict[str, Any], opaque_sequences: bool) -> None:
    options = {**which, **QUICK}
    async with pair(opaque_sequences=opaque_sequences) as (source, target), running() as jobs:
        write(source, "other", 0, 30)
        started = await replicate(jobs, *ends(source, target), **options)
        await until_checkpoint(target, source.databases["db"].sequence)
        write(source, "other", 30, 60)
        end = source.databases["db"].sequence
        await until_checkpoint(target, end)
        await jobs.stop_and_remove(started.type, started.id, timeout=10)
        source.requests.clear()
        await replicate(jobs, *ends(source, target), **options)
        write(source, "wanted", 0, 1)
        while "wanted 0" not in target.databases["db"].documents:
            await target.databases["db"].changed.wait()
        assert min(read_from(source)) == end
    assert [*target.databases["db"].documents] == ["wanted 0"]


async def test_a_source_that_stays_as_it_is_gets_no_checkpoints(source: Server, target: Server) -> None:
    write(source, "other", 0, 30)
    options = {**FILTERS[0], **QUICK}
    run = Replication(*ends(source, target), **options)
    copying = asyncio.create_task(run.run())
    async with asyncio.timeout(LIMIT):
        await until_checkpoint(target, 30)
        before = len(asked(target, "_local")), len(asked(source, "feed=normal"))
        while len(asked(source, "feed=normal")) < before[1] + 3:  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.05)
    assert len(asked(target, "_local")) == before[0]
    copying.cancel()
    await asyncio.wait([copying])


@pytest.mark.parametrize("seed", range(6))
async def test_no_checkpoint_passes_over_what_matches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint is compared with what the target has then, while the source changes and requests fail."""
    monkeypatch.setattr(pipeline, "MISSING_PAUSE", 0.001)
    monkeypatch.setattr(pipeline, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(changes, "FIRST_PAUSE", 0.001)
    choices = random.Random(seed)
    options = {**QUICK, **choices.choice(FILTERS), "checkpoint_interval": 0.01, "connection_timeout": 0.3}
    settings = HttpSettings(first_wait=0.001, longest_wait=0.01, read_timeout=0.5, connect_timeout=2)
    async with pair(opaque_sequences=choices.random() < 0.5, latency=0.003) as (source, target):
        run: Replication
        passed: set[str] = set()

        async def look() -> None:
            assert run.replicator is not None
            assert run.replicator.through is not None
            through = place(run.replicator.through.seq)
            skipped = {each["id"] for each in run.tally.skipped_data()}
            there = {id for sequence, id in source.databases["db"].by_sequence.items() if sequence <= through}
            passed.update(id for id in there if id.startswith("wanted"))
            assert passed <= {*target.databases["db"].documents} | skipped

        async def go_on() -> None:
            nonlocal run
            while True:
                run = Replication(
                    *ends(source, target),
                    hold=look,
                    settings=settings,
                    retries_per_request=2,
                    worker_batch_size=7,
                    **options,
                )
                with suppress(ReplicationError):
                    await run.run()

        copying = asyncio.create_task(go_on())
        async with asyncio.timeout(LIMIT):
            for number in range(40):
                write(source, choices.choice(("other", "other", "wanted")), number, number + 1)
                if choices.random() < 0.2:
                    choices.choice((source, target)).faults.append(fault(choices))
                await asyncio.sleep(choices.choice((0.001, 0.01, 0.03)))
            while checkpoint(target) < source.databases["db"].sequence:
                assert not copying.done(), copying.exception()
                await asyncio.sleep(0.01)
        copying.cancel()
        await asyncio.wait([copying])
