"""The page on tests: what it says of the simulation's score is what is recorded."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import read, rows, section
from tests.simulation.drills import DRILLS
from tests.simulation.mutants import ALL, EVERY, SLIPS, UNSEEN
from tests.simulation.score import known_seeds

HEADING = "What the simulation can see"


def number(cell: str) -> int:
    """Return the first number in a cell of the table."""
    found = re.search(r"[\d,]+", cell)
    assert found is not None, cell
    return int(found[0].replace(",", ""))


def test_the_defects_are_counted() -> None:
    told = " ".join(section("docs/how-it-is-tested.md", HEADING).split())
    assert f"has {len(EVERY)} mutants" in told
    assert f"{len(ALL)} are by those who wrote the checks, {len(SLIPS)} are slips" in told
    assert re.search(rf"\b{len(EVERY)} deliberate\s+defects", read("README.md"))


def test_the_slips_that_nobody_has_written_checks_for_are_counted() -> None:
    told = " ".join(section("docs/how-it-is-tested.md", HEADING).split())
    assert f"there are {len(UNSEEN)} more (`UNSEEN`)" in told
    shown = sum(seed < 300 for seed in known_seeds()["unseen"].values())
    assert f"300 seeds show {shown} of the" in told


def test_the_drills_are_counted() -> None:
    assert f"Drills: {len({*DRILLS})} short programs" in read("docs/how-it-is-tested.md")


@pytest.mark.parametrize("row", rows(section("docs/how-it-is-tested.md", HEADING), "seeds"), ids=lambda row: row[0])
def test_the_score_is_the_recorded_one(row: list[str]) -> None:
    usual, seeds = known_seeds()["usual"], number(row[0])
    shown = [sum(usual.get(each.name, seeds) < seeds for each in kind) for kind in (EVERY, ALL, SLIPS)]
    assert [number(cell) for cell in row[1:]] == shown
    assert f"({shown[0] / len(EVERY):.0%})".replace("%", " %") in row[1]
