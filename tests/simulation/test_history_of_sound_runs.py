"""The history finds nothing wrong with what really happens."""

from __future__ import annotations

from tests.simulation.histories import recorded, replayed


def test_a_run_in_which_all_is_well_gives_no_complaint() -> None:
    history = replayed(recorded())
    assert history.complaints == []
    assert history.operations > 50
    assert {(silence.type, silence.id) for silence in history.silences} >= {("lost", "x"), ("lost", "y")}
