"""What stores count of themselves."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from jobs_service.sources import Sources
from jobs_service.store import open_address
from jobs_service.store.base import BOUNDS, CommitTimes, Transaction
from tests.stores import plain_settings


@pytest.mark.parametrize("scheme", ["memory:", "lmdb:"])
async def test_transactions_commits_and_watches_are_counted(scheme: str, tmp_path: Path) -> None:
    store = open_address(scheme if scheme == "memory:" else f"lmdb:{tmp_path}", plain_settings(), Sources(1))
    names = {"transactions", "commits", "retries", "conflicts", "watches"}
    assert store.metrics() == dict.fromkeys(names, 0)
    await store.open()

    async def write(tr: Transaction) -> None:
        tr.set(b"a", b"1")

    async def look(tr: Transaction) -> bytes | None:
        tr.watch(b"b")
        return await tr.get(b"a")

    await store.transact(write)
    await store.transact(write)
    await store.transact(look)
    await store.read(look)
    assert store.metrics() == {"transactions": 4, "commits": 2, "retries": 0, "conflicts": 0, "watches": 2}
    assert sum(store.commit_times.counts) == 2
    await store.close()
    assert store.metrics()["commits"] == 2


async def test_conflicts_and_retries_are_counted() -> None:
    store = open_address("memory:", plain_settings(), Sources(1))
    await store.open()

    async def increment(tr: Transaction) -> None:
        tr.set(b"n", b"%d" % (int(await tr.get(b"n") or b"0") + 1))

    await asyncio.gather(*[store.transact(increment) for _ in range(5)])
    counts = store.metrics()
    assert counts["commits"] == 5
    assert counts["conflicts"] == counts["retries"] == counts["transactions"] - 5 > 0
    await store.close()


@pytest.mark.parametrize(
    ("seconds", "bound"),
    [(0, 2**-14), (-1, 2**-14), (2**-14, 2**-14), (2**-13, 2**-13), (0.001, 2**-9), (1, 1), (1.01, 2), (1e9, math.inf)],
)
def test_a_commit_is_counted_in_the_bucket_that_ends_at_its_time_or_above(seconds: float, bound: float) -> None:
    times = CommitTimes()
    times.add(seconds)
    assert times.counts == [int(each == bound) for each in BOUNDS]
    assert times.seconds == seconds
