"""That the simulation varies every setting, but for those that it does not execute."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any, Final

from jobs_service import Settings
from jobs_service.testing import Choices, Plan
from tests.simulation.rarities import _KINDS, drawn_constants
from tests.simulation.run import Run

LEFT_OUT: Final = {
    "durable": "the simulated disk has no power cuts, which tests/store/test_power_cuts.py has",
    "handlers": "nothing has it at the start: tests/service/test_reload.py gives it",
    "fdb_library": "only FoundationDB's own client has it",
    "fdb_directory": "the simulated cluster has one directory",
    "fdb_tag": "only FoundationDB's own client has it",
}
"""The settings that no run varies, and why."""

MOST_SEEDS: Final = 3000


def settings_of(seed: int) -> list[Settings]:
    run = Run(Plan(seed), None, None, logging.WARNING)
    run.world.loop.close()
    return run._settings


def test_every_setting_is_drawn_but_for_those_that_say_why_not() -> None:
    seen: dict[str, set[Any]] = defaultdict(set)
    wanted = Settings.model_fields.keys() - LEFT_OUT.keys()
    for seed in range(MOST_SEEDS):
        for settings in settings_of(seed):
            for name in wanted:
                seen[name].add(getattr(settings, name))
        if all(len(seen[name]) > 1 for name in wanted):
            break
    assert {name for name in wanted if len(seen[name]) < 2} == set()


def test_constants_are_what_they_were_after_a_run_that_has_drawn_them() -> None:
    constants = [constant for kind in _KINDS for constant in kind.constants]
    before = [getattr(module, name) for module, name, _ in constants]
    drawn = set()
    for seed in range(300):
        with drawn_constants(Choices(Plan(seed))):
            drawn |= {
                place for place, (module, name, _) in enumerate(constants) if getattr(module, name) != before[place]
            }
        assert [getattr(module, name) for module, name, _ in constants] == before
    assert len(drawn) == len(constants)
