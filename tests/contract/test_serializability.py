"""Concurrent transactions have results that some order, one after the other, explains, on every store."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs_service.store import Store, Transaction
from jobs_service.store.base import KeyValue
from tests.contract.model import Operation
from tests.contract.programs import PROGRAMS, Run, replay
from tests.contract.support import END, contents, empty, write

START = {b"a": b"\x01", b"c": b"\x02"}


async def attempt(store: Store, number: int, program: list[Operation], delay: int) -> tuple[bytes, Run]:
    """Run a program in a transaction, a few iterations of the loop from now; return its versionstamp and last run."""
    for _ in range(delay):
        await asyncio.sleep(0)

    async def function(tr: Transaction) -> tuple[Transaction, Run]:
        run = Run(number, program)
        await run.to_its_end(tr)
        return tr, run

    tr, run = await store.transact(function)
    assert tr.stamp.value is not None
    return tr.stamp.value, run


async def observe(store: Store, delay: int) -> list[KeyValue]:
    """Read everything, a few iterations of the loop from now."""
    for _ in range(delay):
        await asyncio.sleep(0)
    return await store.read(lambda tr: tr.get_range(b"", END))


# The examples share the test's store and empty it: opening one costs more than an example.
@given(
    programs=st.lists(st.tuples(PROGRAMS, st.integers(0, 4)), min_size=2, max_size=8),
    looks=st.lists(st.integers(0, 6), max_size=3),
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_concurrent_transactions_are_as_good_as_one_after_the_other(
    store: Store, programs: list[tuple[list[Operation], int]], looks: list[int]
) -> None:
    await empty(store)
    await write(store, START)
    async with asyncio.TaskGroup() as group:
        attempts = [
            group.create_task(attempt(store, number, program, delay))
            for number, (program, delay) in enumerate(programs)
        ]
        observations = [group.create_task(observe(store, delay)) for delay in looks]
    runs = [task.result() for task in attempts]
    assert len({stamp for stamp, _ in runs}) == len(runs)
    states = [START]
    for _, run in sorted(runs, key=lambda entry: entry[0]):
        states.append(replay(states[-1], run))
    assert await contents(store) == states[-1]
    for observation in observations:
        assert dict(observation.result()) in states


async def test_who_has_been_answered_is_seen_by_all_who_come_later(store: Store) -> None:
    """Not only some order, but one that agrees with what the callers saw happen before what."""

    async def chain(name: bytes) -> None:
        for count in range(20):
            await write(store, {name: b"%d" % count})
            assert await store.read(lambda tr: tr.get(name)) == b"%d" % count
            assert await store.transact(lambda tr: tr.get(name)) == b"%d" % count

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(chain(b"%d" % number))
