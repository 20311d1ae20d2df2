"""That the slips are what they say: each applies, is gone when it is left, and has a name of its own."""

from __future__ import annotations

import inspect

from tests.simulation.mutants import ALL, SLIPS


def test_every_slip_applies() -> None:
    for slip in SLIPS:
        with slip.defect():
            pass


def test_every_slip_has_a_name_of_its_own_and_says_what_is_wrong() -> None:
    names = [mutant.name for mutant in (*ALL, *SLIPS)]
    assert len({*names}) == len(names)
    for slip in SLIPS:
        said = inspect.getdoc(slip.defect) or ""
        assert said.endswith("."), slip.name
        assert "\n" not in said, slip.name
        assert slip == type(slip)(slip.defect), slip.name
