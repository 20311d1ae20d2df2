"""That the simulation varies every setting, but for those that it does not execute."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any, Final

from jobs_service import Settings
from jobs_service.testing import Plan
from tests.simulation.rarities import _CONSTANTS, few_at_once
from tests.simulation.run import Run

LEFT_OUT: Final = {
    "durable": "the simulated disk has no power cuts, which tests/store/lmdb/test_power_cuts.py has",
    "handlers": "nothing has it at the start: the workload 'speakers' gives it to reload, again and again",
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


def test_what_is_left_out_is_a_setting_that_is_not_drawn() -> None:
    assert LEFT_OUT.keys() <= Settings.model_fields.keys()
    first, *others = (settings_of(seed)[0] for seed in range(30))
    drawn = {name for name in LEFT_OUT if any(getattr(each, name) != getattr(first, name) for each in others)}
    # Whether the store is an embedded one decides.
    assert drawn - {"durable"} == set()


class EveryTime:
    """A source of randomness that draws all that there is, and of each the first one."""

    def random(self) -> float:
        return 0.0

    def choice(self, values: Any) -> Any:
        return values[0]


def test_constants_are_what_they_were_after_a_run_that_has_drawn_them() -> None:
    before = [getattr(module, name) for module, name, _ in _CONSTANTS]
    with few_at_once(EveryTime()):  # type: ignore[arg-type]
        assert [getattr(module, name) for module, name, _ in _CONSTANTS] == [values[0] for *_, values in _CONSTANTS]
    assert [getattr(module, name) for module, name, _ in _CONSTANTS] == before
