"""A plugin of pytest that plants deliberate defects, to show which ordinary test finds each.

usage:  python -m pytest -p tests.simulation.planted --mutants=FILE TEST...

The file says which test finds which mutant, as `mutants/ordinary.json` does. Each test runs once without a mutant, and
then once for every mutant that it is to find, with that mutant planted; the run fails if a test fails without one, or
passes with one.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
from _pytest.runner import runtestprotocol

from tests.simulation.mutants import EVERY

SURVIVORS: Final = pytest.StashKey[list[str]]()
PLANTED: Final = pytest.StashKey[dict[str, list[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutants", type=Path, required=True, help="JSON: the test that finds each mutant")


def pytest_configure(config: pytest.Config) -> None:
    found: dict[str, list[str]] = {}
    for mutant, test in json.loads(config.getoption("--mutants").read_text()).items():
        found.setdefault(test, []).append(mutant)
    config.stash[PLANTED], config.stash[SURVIVORS] = found, []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test without a mutant, and with each of its mutants in turn."""
    planted, survivors = item.config.stash[PLANTED].pop(item.nodeid), item.config.stash[SURVIVORS]
    if not _passes(item, nextitem):
        survivors.append(f"{item.nodeid} fails without a mutant")
    for name in planted:
        mutant = next(each for each in EVERY if each.name == name)
        with mutant.defect():
            if _passes(item, nextitem):
                survivors.append(f"{item.nodeid} passes with the mutant {name!r}")
    return True


def _passes(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    # The next item is never the same: pytest would leave it as it is, and the second run would have no fixtures.
    item._initrequest()  # type: ignore[attr-defined]  # of a function, which runs more than once
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    return all(report.passed for report in reports)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    survivors = session.config.stash[SURVIVORS]
    survivors += [f"{test} did not run" for test in session.config.stash[PLANTED]]
    session.exitstatus = pytest.ExitCode.TESTS_FAILED if survivors else pytest.ExitCode.OK
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for survivor in config.stash[SURVIVORS]:
        terminalreporter.write_line(survivor)
