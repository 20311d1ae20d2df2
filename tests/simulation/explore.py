"""Runs many plans in worker processes, one per core, and adds their reports up."""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import multiprocessing
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Self, TypeAlias

from jobs_service.testing.loop import Plan
from tests.simulation.plans import fault_key
from tests.simulation.report import Report
from tests.simulation.shrink import kind_of

Simulate: TypeAlias = Callable[[Plan], Report]
"""Runs a plan. What is given to a worker process must be picklable."""

HANG = 300.0
"""Seconds of real time after which a run is taken for hung: a stormy one takes a few on a busy machine."""

DETAILED = 5
"""How many failing runs of each kind are kept with their events; of further ones only the violations are."""

_LOOK = 0.25  # seconds between two looks at whether to stop


@dataclass
class Tally:
    """What many runs add up to.

    Attributes:
        seeds: how many ran.
        simulated: seconds of virtual time that passed in them.
        busy: seconds of processor time that they took.
        elapsed: seconds of real time from the first to the last.
        faults: how many hit, by kind.
        cells: how often each cell of the operations table was visited.
        failures: the reports with violations, in the order of their seeds.
        digest: of all runs together, whatever the order in which they ended: equal when every run was the same.
    """

    seeds: int = 0
    simulated: float = 0.0
    busy: float = 0.0
    elapsed: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    cells: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[Report] = field(default_factory=list)
    digest: int = 0

    def add(self, report: Report, busy: float = 0.0) -> None:
        """Count a run in.

        Args:
            busy: the seconds of processor time that it took.
        """
        self.seeds += 1
        self.simulated += report.seconds
        self.busy += busy
        self.faults.update(fault_key(fault)[0] for fault in report.faults)
        self.cells.update(report.cells)
        of_this = f"{report.plan.seed} {report.digest}".encode()
        self.digest ^= int.from_bytes(hashlib.blake2b(of_this, digest_size=8).digest())
        if report.violations:
            self.failures.append(report)
            self.failures.sort(key=lambda failure: failure.plan.seed)
            _strip_all_but_the_first(self.failures)


def explore(
    run: Simulate,
    plans: Iterable[Plan],
    *,
    jobs: int,
    stopped: Callable[[], bool] = lambda: False,
    seen: Callable[[Tally], object] = lambda tally: None,
    hang: float = HANG,
) -> Tally:
    """Run plans, each in one of several worker processes, until there are no more or it is told to stop.

    A run that raises, ends its process or hangs is a violation of its seed.

    Args:
        run: runs a plan; picklable.
        plans: may be endless when `stopped` ends it.
        jobs: the number of worker processes.
        stopped: looked at several times a second; once it is true no plan is begun, those under way are awaited.
        seen: called after every run with what there is so far.
        hang: see `HANG`.
    """
    tally = Tally()
    left = iter(plans)
    began = time.monotonic()
    with _Crew(run, hang) as crew:
        while True:
            while len(crew.busy) < jobs and not stopped() and (plan := next(left, None)) is not None:
                crew.begin(plan)
            if not crew.busy:
                return tally
            for report, busy in crew.ended():
                tally.add(report, busy)
                tally.elapsed = time.monotonic() - began
                seen(tally)


@contextmanager
def in_worker(run: Simulate, *, hang: float = HANG) -> Iterator[Simulate]:
    """Yield a function that does what `run` does, but in a worker process: nothing that it does harms the caller.

    Args:
        run: runs a plan; picklable.
        hang: see `HANG`.
    """
    with _Crew(run, hang) as crew:

        def run_there(plan: Plan) -> Report:
            crew.begin(plan)
            while True:
                for report, _ in crew.ended():
                    return report

        yield run_there


def run_guarded(run: Simulate, plan: Plan) -> Report:
    """Run a plan; an exception is a violation, its traceback are the events."""
    try:
        return run(plan)
    except Exception as error:
        lines = "".join(traceback.format_exception(error)).splitlines()
        return _report_of_failure(plan, f"raised {type(error).__name__}: {error}", lines)


class _Crew:
    """Worker processes; a context manager, after which none of them is left.

    A worker gets one plan at a time, so that it is known which one it died of: passing a plan on takes a hundredth of
    the time of a run.

    Attributes:
        busy: the workers with a plan.
    """

    def __init__(self, run: Simulate, hang: float) -> None:
        self._run = run
        self._hang = hang
        self._idle: list[_Worker] = []
        self.busy: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.busy:
            worker.kill()
        for worker in self._idle:
            worker.end()

    def begin(self, plan: Plan) -> None:
        """Have a worker run a plan: one that is idle, else a new one."""
        worker = self._idle.pop() if self._idle else _Worker(self._run, self._hang)
        self.busy.append(worker)
        worker.begin(plan)

    def ended(self) -> Iterator[tuple[Report, float]]:
        """Wait a moment for runs to end; yield their reports and the seconds of processor time that they took."""
        ready = wait([worker.connection for worker in self.busy], _LOOK)
        for worker in [worker for worker in self.busy if worker.connection in ready]:
            answer = worker.answer()
            self.busy.remove(worker)
            if worker.alive:
                self._idle.append(worker)
            yield answer


class _Worker:
    """One process that runs plans, one after the other.

    Attributes:
        connection: ready to be read when the process has answered or is gone.
        alive: whether it can get another plan.
    """

    def __init__(self, run: Simulate, hang: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.alive = True
        self._hang = hang
        self._plan: Plan | None = None
        self._last_words = tempfile.NamedTemporaryFile("r", prefix="simulate-", errors="replace")  # noqa: SIM115
        self._process = context.Process(target=_work, args=(run, theirs, hang, self._last_words.name), daemon=True)
        resource_tracker.ensure_running()  # by itself it would be started below, and undo the mask
        # Ctrl-C in a terminal goes to every process; only the first one decides what it means.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def begin(self, plan: Plan) -> None:
        """Have the process run a plan."""
        self._plan = plan
        with suppress(BrokenPipeError, ConnectionResetError):  # that it is gone shows when its answer is read
            self.connection.send(plan)

    def answer(self) -> tuple[Report, float]:
        """Return the report of the present plan, and its seconds of processor time.

        If the process is gone, that is the violation of the report.
        """
        try:
            answer: tuple[Report, float] = self.connection.recv()
        except (EOFError, ConnectionResetError):
            return self._failure(), 0.0
        return answer

    def _failure(self) -> Report:
        """Return a report that says how and where the process ended."""
        assert self._plan is not None
        self._process.join()
        words = self._last_words.read().splitlines()
        if words and words[0].startswith("Timeout"):  # as faulthandler begins what it writes when time is up
            violation = f"hung: no answer for {self._hang:g} s"
        else:
            violation = f"died: the worker process ended with exit code {self._process.exitcode}"
        self.kill()
        return _report_of_failure(self._plan, violation, words)

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self.end()

    def end(self) -> None:
        """Wait for the end of a process that is doing nothing."""
        self.alive = False
        self.connection.close()
        self._process.join(60)
        self._process.kill()
        self._process.join()
        self._process.close()
        self._last_words.close()


def _work(run: Simulate, connection: Connection, hang: float, last_words: str) -> None:
    """Run in a worker process: answer plans with reports until the other end is gone."""
    with open(last_words, "w") as file, connection, suppress(EOFError, BrokenPipeError, ConnectionResetError):
        faulthandler.enable(file)
        # What is imported stays: the collection after each run need not go through it.
        gc.freeze()
        while True:
            plan = connection.recv()
            began = time.process_time()
            faulthandler.dump_traceback_later(hang, file=file, exit=True)
            report = run_guarded(run, plan)
            faulthandler.cancel_dump_traceback_later()
            connection.send((report, time.process_time() - began))


def _strip_all_but_the_first(failures: Iterable[Report]) -> None:
    """Drop what takes most of the memory of reports, but of the first few of each kind."""
    seen: Counter[str] = Counter()
    for report in failures:
        kind = kind_of(report.violations[0])
        seen[kind] += 1
        if seen[kind] > DETAILED:
            report.events = []
            report.operations, report.faults, report.deviations = [], [], []


def _report_of_failure(plan: Plan, violation: str, events: Sequence[str]) -> Report:
    """Return the report of a run that did not live to make one."""
    return Report(plan, violations=[violation], events=list(events))
