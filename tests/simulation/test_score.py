"""What is kept of scores: a run of fewer or of other seeds takes nothing away that it did not try."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulation import score as score_module
from tests.simulation.mutants import ALL, EVERY, SLIPS
from tests.simulation.mutants.mutant import Change, Mutant
from tests.simulation.score import Score, keep, known_seeds, recorded

ONE, OTHER = ALL[0].name, SLIPS[0].name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scores.json"
    path.write_text(json.dumps({"usual": {ONE: 200}, "focused": {OTHER: 7}}))
    return path


def kept(file: Path, *scores: Score, first: int = 0, seeds: int = 300) -> tuple[dict[str, int], dict[str, int]]:
    keep(scores, first=first, seeds=seeds, file=file)
    known = known_seeds(file)
    return known["usual"], known["focused"]


def test_a_seed_is_kept_where_fewer_or_other_seeds_do_not_show_the_mutant(file: Path) -> None:
    assert kept(file, Score(ONE, None), seeds=40) == ({ONE: 200}, {OTHER: 7})
    assert kept(file, Score(ONE, None), first=300, seeds=2_700) == ({ONE: 200}, {OTHER: 7})
    assert kept(file, Score(ONE, 1_200), first=300, seeds=2_700) == ({ONE: 200}, {OTHER: 7})


def test_a_seed_that_was_tried_and_shows_nothing_any_more_is_forgotten_or_replaced(file: Path) -> None:
    assert kept(file, Score(ONE, None)) == ({}, {OTHER: 7})
    assert kept(file, Score(ONE, 250)) == ({ONE: 250}, {OTHER: 7})
    assert kept(file, Score(ONE, 251)) == ({ONE: 251}, {OTHER: 7})
    assert kept(file, Score(ONE, 12)) == ({ONE: 12}, {OTHER: 7})


def test_a_later_seed_is_kept_where_none_was_known(file: Path) -> None:
    assert kept(file, Score(OTHER, 1_200), first=300, seeds=2_700) == ({ONE: 200, OTHER: 1_200}, {})


def test_a_seed_of_a_mutants_own_runs_is_kept_until_the_usual_mix_shows_it(file: Path) -> None:
    assert kept(file, Score(OTHER, None, focused=3)) == ({ONE: 200}, {OTHER: 3})
    assert kept(file, Score(OTHER, None, focused=5)) == ({ONE: 200}, {OTHER: 5})
    assert kept(file, Score(OTHER, None)) == ({ONE: 200}, {})


def test_both_rates_of_all_mutants_are_told(file: Path) -> None:
    kept(file, Score(OTHER, 1_200), first=300, seeds=2_700)
    few, many = recorded((300, 3_000), file)
    assert few.startswith(f"as recorded, 300 seeds show 1 of all {len(EVERY)} mutants, ")
    assert few.endswith(
        f"1 of {len(ALL)} by those who wrote the checks, 0 of {len(SLIPS)} by somebody who had not read them"
    )
    assert f"3000 seeds show 2 of all {len(EVERY)} mutants" in many


def test_a_mutant_that_does_not_fit_any_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Change("tests.simulation.score:first_failure", (("these words", "others"),))
    monkeypatch.setattr("gc.freeze", lambda: None)  # it is for a process of its own
    monkeypatch.setattr(score_module, "EVERY", (Mutant("never there", "", (change,)),))
    with pytest.raises(LookupError, match="the mutant 'never there' cannot be planted: first_failure has"):
        score_module._score_one("never there", first=0, seeds=1)
