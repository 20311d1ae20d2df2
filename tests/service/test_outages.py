"""When the runs of a type crash: which share of those that ended lately, whatever their number."""

from __future__ import annotations

import pytest

from jobs_service.model.type_state import Totals
from jobs_service.service.failures import outage_of

HOUR = 60


def minutes(*told: tuple[int, Totals]) -> list[Totals]:
    """Return an hour, the present minute last, from what happened so many minutes ago; nothing did in all others."""
    happened = dict(told)
    return [happened.get(ago, Totals()) for ago in reversed(range(HOUR))]


WELL, CRASHED = Totals(started=100, succeeded=100), Totals(started=100, crashed=100)
CASES = [
    ("nothing happens", minutes(), 0, None),
    ("all is well", minutes(*((ago, WELL) for ago in range(60))), 0, None),
    (
        "everything crashes since less than a minute",
        minutes((0, CRASHED), *((ago, WELL) for ago in range(2, 60))),
        0,
        2,
    ),
    ("it began half a minute ago", minutes((0, CRASHED), *((ago, WELL) for ago in range(1, 60))), 100, 2),
    ("a few of very many crash", minutes((0, Totals(succeeded=900, crashed=90)), (5, WELL)), 90, None),
    ("a fifth crashes for ten minutes", minutes(*((ago, Totals(succeeded=8, crashed=2)) for ago in range(10))), 5, 10),
    ("four crashes", minutes((0, Totals(crashed=4))), 4, None),
    ("one job crashes again and again", minutes(*((ago, Totals(crashed=1)) for ago in (0, 1, 3, 5, 9))), 1, 10),
    ("nothing runs between two attempts", minutes((40, CRASHED)), 100, 60),
    ("some succeed between two attempts", minutes((40, CRASHED), (30, WELL)), 0, None),
    ("seldom, and always", minutes(*((ago, Totals(crashed=1)) for ago in (10, 20, 30, 40, 50))), 1, 60),
    ("what was wrong before is over", minutes((0, WELL), (4, CRASHED)), 0, None),
    ("one success does not end it", minutes((0, Totals(succeeded=1)), (4, CRASHED)), 99, 10),
    ("jobs that are snoozed have not crashed", minutes((0, Totals(released=100, crashed=5))), 5, None),
    ("jobs fail for good by what they are ended with", minutes((0, Totals(failed=9))), 0, 2),
    ("the last attempt is counted once", minutes((0, Totals(failed=6, crashed=6, succeeded=7))), 0, 10),
    ("workers are lost", minutes((0, Totals(lost=50))), 0, None),
]


@pytest.mark.parametrize(
    ("lately", "retrying", "within"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_runs_of_a_type_crash(lately: list[Totals], retrying: int, within: int | None) -> None:
    found = outage_of("email", lately, retrying)
    assert (None if found is None else found.minutes) == within
