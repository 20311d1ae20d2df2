"""The queue of changes: bounded in rows and bytes, taken in batches in the order of the feed."""

import asyncio

from jobs_service.replication.changes import ChangeQueue, ThroughSequence
from jobs_service.replication.contract import Change, EndOfChanges
from tests.virtual_time import in_virtual_time


def change(number: int, size: int = 10, seq: bool = True) -> Change:
    return Change(number if seq else None, f"doc{number}", ("1-a",), False, size)


def queue(rows: int = 100, size: int = 10_000, *, fills: bool = False) -> tuple[ChangeQueue, ThroughSequence]:
    through = ThroughSequence(0)
    return ChangeQueue(through, rows, size, fills_batches=fills), through


async def settled(task: asyncio.Task[object]) -> bool:
    """Let everything happen that can happen by itself, and return whether the task has ended."""
    for _ in range(20):
        await asyncio.sleep(0)
    return task.done()


@in_virtual_time
async def test_a_batch_has_what_is_there() -> None:
    changes, through = queue()
    for number in range(1, 4):
        await changes.put(change(number))
    batch = await changes.take(10)
    assert batch is not None
    assert [each.id for each in batch.changes] == ["doc1", "doc2", "doc3"]
    through.end(batch.place)
    assert through.seq == 3


@in_virtual_time
async def test_a_batch_that_is_to_be_full_waits_for_more() -> None:
    changes, _ = queue(fills=True)
    taking = asyncio.create_task(changes.take(2))
    await changes.put(change(1))
    assert not await settled(taking)
    await changes.put(change(2))
    assert await settled(taking)


@in_virtual_time
async def test_the_reader_waits_while_there_are_too_many_bytes() -> None:
    changes, _ = queue(size=100)
    await changes.put(change(1, size=100))
    putting = asyncio.create_task(changes.put(change(2)))
    assert not await settled(putting)
    await changes.take(1)
    assert await settled(putting)


@in_virtual_time
async def test_a_feed_that_only_moves_on_makes_a_batch_without_changes() -> None:
    changes, through = queue()
    await changes.put(EndOfChanges("7-x"))
    batch = await changes.take(10)
    assert batch is not None
    assert batch.changes == []
    through.end(batch.place)
    assert through.seq == "7-x"
