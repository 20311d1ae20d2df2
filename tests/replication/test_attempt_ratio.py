"""Whether a request is worth being sent: CouchDB's cases (bulk_get_attempt, update_bulk_get_ratio) by name."""

import asyncio

import pytest

from jobs_service.replication.pipeline import TRY_AGAIN, AttemptRatio
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_bulk_get_attempt() -> None:
    ratio = AttemptRatio(limit=0.5, decay=1.0)
    assert ratio.is_worth_it()
    ratio.update(9, 10)
    assert ratio.is_worth_it()
    ratio.update(1, 10)
    assert not ratio.is_worth_it()
    await asyncio.sleep(TRY_AGAIN + 1)
    assert ratio.is_worth_it()
    ratio.update(0, 10)
    assert not ratio.is_worth_it()


@pytest.mark.parametrize(
    ("rounds", "least", "most"),
    [
        ([(1, 1000)], 0.9, 1.0),
        ([(900, 1000)], 0.0, 0.11),
        ([(500, 1000)], 0.49, 0.51),
        ([(1, 1000), (1000, 1000)], 0.0, 0.1),
        ([(1000, 1000), (1, 1000)], 0.9, 1.0),
        ([(0, 0)], 0.0, 0.0),
    ],
    ids=["failures", "successes", "half and half", "successes after failures", "failures after successes", "nothing"],
)
@in_virtual_time
async def test_update_bulk_get_ratio(rounds: list[tuple[int, int]], least: float, most: float) -> None:
    ratio = AttemptRatio(limit=0.5, decay=0.25)
    for successes, attempts in rounds:
        for _ in range(100):
            ratio.update(successes, attempts)
    assert least <= ratio.ratio <= most
