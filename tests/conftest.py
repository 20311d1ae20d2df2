"""What holds for every test."""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import os
import pkgutil
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import coverage
import fdb.six
import pytest
import structlog
from hypothesis import HealthCheck, settings

import jobs_service
from tests import fdb_place
from tests.shares import ALL
from tests.stores import FDB_VARIABLE

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

# Hundreds of processes that tests start would compile the package anew, each for a third of a second, and every worker
# of pytest-xdist all the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# pytest asks every importer for find_spec, which the one of foundationdb's six does not have; nobody needs that one.
sys.meta_path[:] = [each for each in sys.meta_path if type(each).__module__ != fdb.six.__name__]


def pytest_configure(config: pytest.Config) -> None:
    """Let examples of property-based tests take the time they take: a busy machine must not fail a test.

    There is a share of them, where a test does not say how many; `scripts/test --long cases` tries all.
    """
    config.addinivalue_line("markers", "unmeasured: coverage is left out of it; other tests run the same lines.")
    config.addinivalue_line("markers", "external: needs a browser, Node, or a server; `scripts/test` leaves it out.")
    fdb_place.begin(config)
    _use_memory_for_files()
    # Daemons leave their tokens there, those that are killed as well.
    state = tempfile.mkdtemp(prefix="jobs-service-state-")
    os.environ["XDG_STATE_HOME"] = state
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    if config.getoption("--hypothesis-profile", None) is None:
        examples = 100 if ALL else 40
        unhurried = settings(deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
        settings.register_profile("unhurried", unhurried)
        settings.load_profile("unhurried")
    # A shell that starts the tests in the background has them ignore Ctrl-C, and every process they start as well.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Start two processes per core: a third of the time, a test waits for another process or a timer."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return 2 * (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


MEMORY = Path("/dev/shm")
ENOUGH = 4 << 30
"""Bytes that must be free there: it is taken by what a few tests at a time have written, and those that failed."""


def _use_memory_for_files() -> None:
    """Make the tests' directories in memory where there is enough: every commit of the embedded store waits for a disk.

    No test can tell the difference; PYTEST_DEBUG_TEMPROOT, which is pytest's own, names another place.
    """
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ENOUGH:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


TESTS = Path(__file__).parent
UNMEASURED = frozenset(TESTS / name for name in ("docs", "hostile", "project", "simulation", "system"))
"""Tests that run the same lines very often, which others cover: measuring would make them take three times as long.

Single ones are marked as unmeasured where they stand.
"""
EXTERNAL = frozenset(
    TESTS / name
    for name in (
        "client/test_node_worker.py",
        "dashboard/test_browser.py",
        "http/test_proxies.py",
        "metrics/test_promtool.py",
    )
)
"""Tests that need a program which is none of Python's: a browser, Node, a proxy, promtool."""
EXTERNAL_CASE = re.compile(r"\b(postgres|pouch_server)\b")
"""In the name of a test's case: it needs such a program, too."""
LONG = tuple(
    TESTS / name
    for name in (
        "project",
        "simulation",
        "system",
        "client/test_kill.py",
        "docs",
        "hostile",
        "store/lmdb/test_forks_and_kills.py",
        "store/lmdb/test_processes.py",
        "store/lmdb/test_damage.py",
        "store/sqlite/test_kills.py",
        "service/test_full_store.py",
        "copying",
        "testing",
        "dashboard/test_browser.py",
        "outbox/test_kills.py",
        "replication/test_kills.py",
        "replication/test_restarts.py",
        "examples",
    )
)
"""Where the tests are that take seconds, the longest first."""
MEASURED_PROCESSES = "COVERAGE_PROCESS_CONFIG"
"""Tells the Python processes that tests start that they are measured."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collections, and without measuring, with which every process takes three times as long.

    What importing the package runs is measured all the same: where anything is measured, all of it is imported before.
    """
    if coverage.Coverage.current() is not None:
        for module in pkgutil.walk_packages(jobs_service.__path__, "jobs_service."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    gc.disable()
    try:
        with _nothing_measured():
            return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave coverage out of tests where it would cost the most, and begin with the long ones, so that none is last."""
    gone = sorted(str(path) for path in {*UNMEASURED, *EXTERNAL, *LONG} if not path.exists())
    if gone:
        raise pytest.UsageError(f"tests/conftest.py names files that are not there: {', '.join(gone)}")
    items.sort(key=lambda item: _place(item.path))
    for item in items:
        # A suite of the service runs the same lines on every store; the suites of the stores themselves are measured.
        again = "simulated" in item.name or (
            item.path.parent == TESTS / "service" and ("lmdb" in item.name or "sqlite" in item.name)
        )
        if again or _is_unmeasured(item.path):
            item.add_marker("unmeasured")
        if item.path in EXTERNAL or EXTERNAL_CASE.search(item.name):
            item.add_marker("external")


def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collections: eleven thousand tests are 400,000 objects.

    Each simulated run, and each test that looks for leaks, collects all garbage, and would walk through them: 140 tests
    of the simulation and of worlds took more than twice as long.
    """
    gc.collect()
    gc.freeze()


@functools.cache
def _place(file: Path) -> int:
    """Return where a file's tests stand: all that are at the same place keep the order that they have."""
    return next((place for place, path in enumerate(LONG) if path == file or path in file.parents), len(LONG))


@functools.cache
def _is_unmeasured(file: Path) -> bool:
    return not {file, *file.parents}.isdisjoint(UNMEASURED)


@pytest.fixture(autouse=True)
def _no_logging_left_behind() -> Iterator[None]:
    """What one test does to logging is no other's concern."""
    before = structlog.get_config()["wrapper_class"]
    yield
    assert structlog.get_config()["wrapper_class"] is before, "use the fixture own_logging"


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Undo what the command line does to logging, for tests that run it in their own process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configured = structlog.get_config() if structlog.is_configured() else None
    yield
    structlog.reset_defaults()
    if configured is not None:
        structlog.configure(**configured)
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Where the spans of a program with a tracer provider go."""
    # Most tests trace nothing.
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@pytest.fixture(autouse=True)
def _empty_cluster(request: pytest.FixtureRequest) -> None:
    """Begin every test on a FoundationDB cluster without what others have left there."""
    if FDB_VARIABLE in os.environ and fdb_place.uses_cluster(request.node):
        from tests.fdb_stores import clear_cluster

        clear_cluster(os.environ[FDB_VARIABLE])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure nothing of an unmeasured test: not its fixtures and processes either, as pytest-cov's own mark would."""
    if item.get_closest_marker("unmeasured") is None:
        return (yield)
    with _nothing_measured():
        return (yield)


@contextmanager
def _nothing_measured() -> Iterator[None]:
    """Measure nothing meanwhile, if anything is measured: not the processes that are started either."""
    if coverage.Coverage.current() is None:
        yield
        return
    processes = os.environ.pop(MEASURED_PROCESSES, None)
    # A worker of pytest-xdist is measured twice over, by pytest-cov and as a process that was started: the measurement
    # that began last does it, and hands over to the one before when it is stopped.
    stopped = []
    while (measuring := coverage.Coverage.current()) is not None:
        measuring.stop()
        stopped.append(measuring)
    try:
        yield
    finally:
        for measuring in reversed(stopped):
            measuring.start()
        if processes is not None:
            os.environ[MEASURED_PROCESSES] = processes
