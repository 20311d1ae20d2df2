"""What `scripts/simulate` prints: tables, a progress line on a terminal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from jobs_service.testing.cluster import FAULTS
from tests.operations import CELLS, COLUMNS
from tests.simulation.explore import Tally
from tests.simulation.plans import only_text, replay_command
from tests.simulation.report import Report
from tests.simulation.weather import MACHINE_FAULTS, PROCESS_FAULTS

NEVER = "NEVER"
"""What stands in a cell that can be visited and was not."""

LAST = 60
"""How many of a failing run's last events are printed."""


def print_summary(tally: Tally, *, first: int, interrupted: bool) -> None:
    """Print what the runs of all seeds add up to.

    Args:
        first: the first seed; the others follow it.
        interrupted: whether somebody stopped the exploration.
    """
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    if tally.faults:
        console.print(_faults_table(tally))
    console.print(_cells_table(tally.cells))
    cut = " (interrupted)" if interrupted else ""
    console.print(f"seeds {first} to {first + tally.seeds - 1}{cut}" if tally.seeds else f"no seed was run{cut}")
    if tally.seeds:
        console.print(
            f"{tally.seeds} seeds in {tally.elapsed:.1f} s: {_rate(tally.seeds, tally.elapsed):.1f} seeds/s, "
            f"{_rate(tally.seeds, tally.busy):.1f} seeds/s of one core"
        )
        console.print(f"{tally.simulated / 3600:.1f} simulated hours, {sum(tally.faults.values())} faults")
        console.print(f"digest of all runs {tally.digest:016x}")
    console.print(f"{len(tally.failures)} failing seeds" if tally.failures else "no violation")


def print_failure(report: Report, options: Sequence[str]) -> None:
    """Print the violations of a run, the last events before its end, and the command that replays it.

    Args:
        options: those of `scripts/simulate` that the run depends on.
    """
    print("\n".join(failure_lines(report, options)))


def failure_lines(report: Report, options: Sequence[str] = (), *, last: int = LAST) -> list[str]:
    """Return what there is to say about a failing run, the last events included."""
    plan = report.plan
    lines = [f"== seed {plan.seed}" + (f", only {only_text(plan)}" if only_text(plan) else "")]
    lines += [f"violation: {violation}" for violation in report.violations]
    lines += ["the last events:", *(f"  {event}" for event in report.events[-last:])]
    return [*lines, f"replay: {replay_command(plan, options)}"]


def print_replay(report: Report) -> None:
    """Print all events of a run, what it did, and its violations."""
    for event in report.events:
        print(event)
    print(
        f"digest {report.digest}, {report.seconds:.3f} simulated seconds, {len(report.operations)} operations, "
        f"{len(report.faults)} faults, {len(report.deviations)} deviations of the schedule"
    )
    for violation in report.violations:
        print(f"violation: {violation}")
    if not report.violations:
        print("no violation")


@contextmanager
def progress(total: int | None) -> Iterator[Callable[[Tally], object]]:
    """Show how far an exploration is while the block runs, if somebody sits at stderr; yield what takes the tallies.

    Args:
        total: how many seeds there are; None when nobody knows.
    """
    if not sys.stderr.isatty():
        yield lambda tally: None
        return
    text = TextColumn("{task.fields[line]}")
    with Progress(SpinnerColumn(), text, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", line="starting")

        def show(tally: Tally) -> None:
            of_total = "" if total is None else f" of {total}"
            line = (
                f"{tally.seeds}{of_total} seeds, {_rate(tally.seeds, tally.elapsed):.1f}/s, "
                f"{tally.simulated / 3600:.1f} simulated hours, {len(tally.failures)} failing"
            )
            bar.update(task, line=line)

        yield show


def _faults_table(tally: Tally) -> Table:
    table = Table("fault", title="faults injected", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("times", justify="right")
    table.add_column("per seed", justify="right")
    table.add_column("what it does")
    known = {**FAULTS, **PROCESS_FAULTS, **MACHINE_FAULTS}
    for kind, count in sorted(tally.faults.items()):
        table.add_row(kind, str(count), f"{count / tally.seeds:.1f}", known.get(kind.partition(":")[0], ""))
    return table


def _cells_table(cells: Counter[tuple[str, str]]) -> Table:
    table = Table(
        title=f"operations by what their job was before, times (–: cannot be, {NEVER}: could be and was not)",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("operation", no_wrap=True)
    for state in COLUMNS:
        table.add_column(state, justify="right", overflow="fold", min_width=len(NEVER))
    for operation in sorted({operation for operation, _ in [*CELLS, *cells]}):
        table.add_row(operation, *(_cell(cells, (operation, state)) for state in COLUMNS))
    return table


def _cell(cells: Counter[tuple[str, str]], cell: tuple[str, str]) -> str:
    if cells[cell]:
        return str(cells[cell])
    return f"[bold red]{NEVER}[/]" if cell in CELLS else "–"


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0
