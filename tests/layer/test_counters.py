"""Counters in the lanes of one integer: whatever is added in whatever order, each lane has its own sum."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service import JobsService, StoreDamaged
from jobs_service.layer import counters
from jobs_service.layer.counters import COUNTS_BYTES, decoded
from jobs_service.layer.keyspace import HOURS, MINUTES
from jobs_service.sources import Sources
from jobs_service.store.overlay import added
from tests.reader.counts import counts as counts_of
from tests.service.support import T1
from tests.stores import EVERY_KIND, StoreKind

LANES = COUNTS_BYTES // 8
DAY = 86_400.0


@given(st.lists(st.dictionaries(st.integers(0, LANES - 1), st.integers(-(2**40), 2**40), max_size=8), max_size=8))
def test_each_lane_has_its_own_sum_also_below_zero(additions: list[dict[int, int]]) -> None:
    row = None
    wanted = [0] * LANES
    for addition in additions:
        total = sum(count << 64 * lane for lane, count in addition.items())
        row = added(row, total.to_bytes(COUNTS_BYTES, "little", signed=True))
        for lane, count in addition.items():
            wanted[lane] += count
    if row is None:
        return
    assert counters._lanes(row) == wanted
    counts, told = decoded(row), counts_of(row)
    assert (counts.running, counts.succeeded, counts.failed, counts.canceled) == tuple(wanted[2:6])
    assert [*told.states.values(), *told.totals.values()] == wanted[:17]
    assert (counts.waited.counts, counts.ran.counts) == (told.waited, told.ran)


def test_a_row_of_another_length_is_damaged() -> None:
    with pytest.raises(StoreDamaged, match=f"{COUNTS_BYTES - 1} bytes, not {COUNTS_BYTES}"):
        decoded(bytes(COUNTS_BYTES - 1))


@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_minutes_are_kept_for_25_hours_and_hours_for_35_days(kind: StoreKind, tmp_path: Path) -> None:
    begin, ahead = 1_700_000_000.0, 0.0
    sources = Sources(None if kind.shared else 0, wall_time=lambda: begin + ahead)
    async with JobsService(kind.where(tmp_path), sources=sources, supervise=False) as jobs:
        await jobs.set_type_timeout(T1, 60)

        async def rows(family: int) -> int:
            section = jobs._context.keyspace.sections[family]
            return len(await jobs.store.read(lambda tr: tr.get_range(section, section + b"\xff")))

        found = []
        for number, days in enumerate((0.0, 0.5, 1.0, 1.1, 34.0, 36.0)):
            ahead = days * DAY
            await jobs.add(T1, f"{number}")
            found.append((await rows(MINUTES), await rows(HOURS)))
        assert found == [(1, 1), (2, 2), (3, 3), (3, 4), (1, 5), (1, 4)]
        assert (await jobs.counts(T1))[T1].totals.added == 6
