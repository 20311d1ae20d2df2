"""That every drill is done, and that chosen workloads of small runs have their own kind of run."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

from jobs_service.testing import Choices, Plan
from tests.simulation import drilling, drills
from tests.simulation.drills import DRILLS
from tests.simulation.run import Run, simulate
from tests.simulation.workloads import OF_FOCUSED


def every_drill() -> Iterator[str]:
    """Yield the names of all public functions of the package whose only argument is a drill."""
    for module in pkgutil.iter_modules(drills.__path__):
        found = importlib.import_module(f"{drills.__name__}.{module.name}")
        for name, function in inspect.getmembers(found, inspect.iscoroutinefunction):
            if function.__module__ == found.__name__ and not name.startswith("_"):
                parameters = [*inspect.signature(function).parameters.values()]
                if [each.annotation for each in parameters] == ["Drill"]:
                    yield name


def test_every_drill_is_among_those_that_are_done() -> None:
    assert sorted(every_drill()) == sorted({each.__name__ for each in DRILLS})


def test_a_run_of_drills_alone_can_be_chosen() -> None:
    run = Run(Plan(3), None, ["drills"], 30)
    assert run.drills in drilling._DRILLS
    assert not {*run.world.choices.rates} & {"kill", "crash", "away"}
    run.world.loop.close()
    report = simulate(Plan(3), workloads=["drills"])
    assert report.violations == []
    assert sum("drill " in event for event in report.events) > run.drills


def test_no_process_leaves_while_it_does_a_drill() -> None:
    choices = Choices(Plan(3), rates={"heir leaves": 0.5, "slow lock": 0.5, "kill": 0.5})
    drilling.let_nothing_go_wrong(choices, None)
    assert {*choices.rates} == {"slow lock"}


@pytest.mark.parametrize("name", sorted(each.name for each in OF_FOCUSED if each.name != "foremen"))
def test_a_workload_that_small_runs_alone_have_is_run_as_there_if_it_is_chosen(name: str) -> None:
    run = Run(Plan(5), None, [name], 30)
    assert run.focus.workloads == (name,)
    assert run.focus.profile in ("calm", "gusty")
    run.world.loop.close()
