"""That the simulation does everything that can be done: every public operation, with every argument."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import pytest

from jobs_service import JobsService, JobTransaction, RunningJob
from jobs_service.service.transactions import WithinTransaction
from jobs_service.testing import Plan
from tests.simulation.run import simulate

INTERFACES: Final = (JobsService, JobTransaction, RunningJob)
MIXES: Final = (
    ("readers", "composers", "workers", "creators", "batches", "resubmitters"),
    ("speakers", "composers", "readers", "pausers", "retainers"),
    ("handlers", "followers", "subscribers", "stoppers", "waiters", "type keepers", "inspectors", "lookers"),
    ("bulk", "plain", "workers", "cancelers", "heartbeats"),
    ("operators", "handlers"),
    ("drills",),
)
QUICK: Final = (*product(range(6), range(len(MIXES))), (18, 0), (20, 1))
"""Seeds with their mixes that use everything; when they do no longer, all others are tried as well."""
MOST_SEEDS: Final = 40

LEFT_OUT: Final = {
    "JobsService.commands": "runs real processes",
    "JobsService.asgi": "the simulation has no network",
    **dict.fromkeys(
        [
            f"JobsService.{name}"
            for name in (
                *("ask_process", "before_leaving", "listed", "page(by_time)", "queue_states"),
                *("type_settings", "wall_time"),
            )
        ],
        "is for interfaces",
    ),
    **dict.fromkeys(
        ["JobsService.include", "JobsService.middleware", "JobsService.provide"], "is done before handlers run"
    ),
    "JobTransaction.sql": "tests/store/sqlite/test_rows.py",
    "JobsService.run(processes)": "starts real processes",
    "JobsService.run(setup)": "is for real processes",
    "JobsService.cron(timezone)": "tests/runner/test_schedule.py",
    "JobsService.reload": "tests/service/test_reload.py",
    "JobsService.run(types)": "tests/runner",
    "JobsService.throughput": "tests/service compares it with what was counted",
    "RunningJob.to_dict": "plain data of what is there already",
}
"""What the simulation does not do, and why."""


def operations() -> Iterator[tuple[type, str, Any]]:
    for interface in INTERFACES:
        for name in dir(interface):
            function = inspect.getattr_static(interface, name)
            if not name.startswith("_") and inspect.isfunction(function):
                yield interface, name, function


def names() -> set[str]:
    found = set()
    for interface, name, function in operations():
        found.add(f"{interface.__name__}.{name}")
        arguments = [argument for argument in inspect.signature(function).parameters if argument != "self"]
        found |= {f"{interface.__name__}.{name}({argument})" for argument in arguments}
    return found


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What the tests have called since, with which arguments beside the usual ones."""
    used: set[str] = set()

    def noting(interface: type, name: str, function: Any) -> Any:
        signature = inspect.signature(function)
        # Not one operation that uses another; but the service's transactions hand some on to those of the layer.
        callers = ("tests.", "jobs_service.service") if interface is JobTransaction else ("tests.",)

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"].startswith(callers):
                used.add(f"{interface.__name__}.{name}")
                given = signature.bind(*arguments, **keywords).arguments
                for argument, value in given.items():
                    if value is not signature.parameters[argument].default and (value or not isinstance(value, dict)):
                        used.add(f"{interface.__name__}.{name}({argument})")
            return function(*arguments, **keywords)

        return call

    for interface, name, function in operations():
        monkeypatch.setattr(interface, name, noting(interface, name, function))
    return used


def test_every_operation_is_used_with_every_argument(used: set[str]) -> None:
    wanted = {name for name in names() if name not in LEFT_OUT and name.split("(")[0] not in LEFT_OUT}
    for seed, mix in (*QUICK, *product(range(MOST_SEEDS), range(len(MIXES)))):
        simulate(Plan(seed), profile="calm", workloads=MIXES[mix])
        if wanted <= used:
            break
    missing = sorted(wanted - used)
    assert missing == [], "\n".join(missing)
    assert not (LEFT_OUT.keys() & used), sorted(LEFT_OUT.keys() & used)
    assert LEFT_OUT.keys() <= names()


def test_blocks_offer_what_transactions_do() -> None:
    """What the simulation does to transactions it need not do to blocks: they are the same operations."""
    of_blocks = {name for name in dir(WithinTransaction) if not name.startswith("_")}
    assert {name for interface, name, _ in operations() if interface is JobTransaction} <= of_blocks
