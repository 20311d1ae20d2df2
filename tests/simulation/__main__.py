"""The command `scripts/simulate`: runs many seeds, or replays one, and shrinks what fails."""

from __future__ import annotations

import argparse
import difflib
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from logging import DEBUG, WARNING
from types import FrameType
from typing import Final, NoReturn

from jobs_service.testing.loop import Plan
from tests.simulation.explore import Simulate, Tally, explore, in_worker, run_guarded
from tests.simulation.mutants import EVERY, UNSEEN
from tests.simulation.plans import parse_only, replay_command
from tests.simulation.printing import print_failure, print_replay, print_summary, progress
from tests.simulation.report import Report
from tests.simulation.run import simulate
from tests.simulation.score import Score, keep, known_seeds, recorded, score, summary
from tests.simulation.shrink import kind_of, shrink
from tests.simulation.workloads import ALL, NOT_IN_ALL

SEEDS = 300
"""How many seeds are run when nothing says how many."""

MANY_SEEDS = 3_000
"""How many seeds the score of the deliberate defects is told for, beside these."""

DETAILED = 3
"""How many failing seeds, of violations of different kinds, are shrunk and printed with their events."""

LISTED = 20
"""How many further failing seeds are listed."""

_SCORES: Final = "tests/simulation/mutants/scores.json"
_MUTANTS: Final = "they are in tests/simulation/mutants/*.toml"
_WORKLOADS: Final = "tests/simulation/workloads"

SHRINK_SECONDS = 120.0
"""How long one failing seed is shrunk."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what a command line says; return the exit code: 0 no violation, 1 violations, 130 for a second Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(arguments)
    _check(parser, options)
    level = WARNING if options.seed is None else DEBUG
    run = partial(simulate, profile=options.profile, workloads=options.workload, log_level=level)
    try:
        if options.seed is not None:
            return _replay(parser, options, run)
        if options.mutants is not None:
            return _score(options)
        return _explore(options, run)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Who read the output has seen enough; what Python still holds of it goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="scripts/simulate",
        description="Runs the service in a deterministic world that breaks everything, once per seed.",
        epilog="Exit codes: 0 no violation, 1 violations, 2 wrong usage, 130 Ctrl-C in a replay or a score, or twice; "
        "the first one ends with a summary.",
    )
    what = parser.add_argument_group("what is run")
    what.add_argument("--seeds", type=_positive, metavar="N", help=f"run N seeds; {SEEDS} unless --minutes is given")
    what.add_argument("--minutes", type=_minutes, metavar="M", help="run seeds until M minutes have passed")
    what.add_argument("--first", type=_seed, metavar="S", help="the first of the seeds; 0 by default")
    what.add_argument("--random", action="store_true", help="begin with a random seed")
    what.add_argument("--seed", type=_seed, metavar="S", help="replay one seed and print all its events")
    what.add_argument("--only", metavar="TEXT", help="with --seed: a part of it, as printed for a shrunk run")
    what.add_argument("--workload", action="append", metavar="NAME", help="run this workload only; can be repeated")
    profile = what.add_mutually_exclusive_group()
    profile.add_argument("--calm", dest="profile", action="store_const", const="calm", help="no faults")
    profile.add_argument(
        "--gusty", dest="profile", action="store_const", const="gusty", help="many faults, but none that takes time"
    )
    profile.add_argument(
        "--breezy", dest="profile", action="store_const", const="breezy", help="some faults of all kinds"
    )
    profile.add_argument(
        "--stormy", dest="profile", action="store_const", const="stormy", help="many faults of all kinds"
    )
    what.add_argument(
        "--mutants",
        nargs="*",
        metavar="NAME",
        help="plant deliberate defects, those named or all (which takes hours), one at a time; say which seed shows "
        f"each first, and write it to {_SCORES}; with --seed: replay it with one of them",
    )
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", type=_positive, default=_cores(), metavar="J", help="worker processes; one per core")
    how.add_argument("--no-shrink", action="store_true", help="do not look for the smallest part that fails")
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.only is not None and options.seed is None:
        parser.error("--only needs --seed")
    others = options.minutes is not None or options.workload or options.profile or options.no_shrink
    if options.mutants is not None and options.seed is None and others:
        parser.error("--mutants takes --seeds, --first, --random and --jobs: the point is the usual mix")
    if options.mutants is not None and options.seed is not None and len(options.mutants) != 1:
        parser.error(f"--seed takes --mutants with one name, not {len(options.mutants)}")
    mutants = {mutant.name for mutant in (*EVERY, *UNSEEN)}
    for name in options.mutants or ():
        if name not in mutants:
            parser.error(f"there is no mutant {name!r}{_nearest(name, mutants)}; {_MUTANTS}")
    if options.random and options.first is not None:
        parser.error("--random and --first exclude each other")
    names = sorted(workload.name for workload in (*ALL, *NOT_IN_ALL))
    for name in options.workload or ():
        if name not in names:
            parser.error(f"there is no workload {name!r}{_nearest(name, names)}; they are in {_WORKLOADS}")
    for name in ("seeds", "minutes", "first", "random"):
        value = getattr(options, name)
        if options.seed is not None and value is not None and value is not False:
            parser.error(f"--seed and --{name} exclude each other")


def _replay(parser: argparse.ArgumentParser, options: argparse.Namespace, run: Simulate) -> int:
    """Run one seed in this very process, where breakpoints work."""
    try:
        plan = Plan(options.seed) if options.only is None else parse_only(options.seed, options.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    began = time.process_time()
    planted = [each for each in (*EVERY, *UNSEEN) if each.name in (options.mutants or ())]
    with planted[0].defect() if planted else nullcontext():
        report = run_guarded(run, plan)
    tally = Tally()
    tally.add(report, time.process_time() - began)
    for mutant in planted:
        known = next((seeds[mutant.name] for seeds in known_seeds().values() if mutant.name in seeds), None)
        print(f"with the mutant {mutant.name!r}, which {'no known seed' if known is None else f'seed {known}'} shows")
    print_replay(report)
    if options.only is None and not planted:
        _shrink(options, run, tally.failures)
    return 1 if report.violations else 0


def _score(options: argparse.Namespace) -> int:
    """Score mutants in the usual mix; the seeds that show them are kept for the tests."""
    names = options.mutants or [mutant.name for mutant in EVERY]
    first, seeds = _first_seed(options), options.seeds or SEEDS

    scores: list[Score] = []

    def tell(one: Score) -> None:
        scores.append(one)
        shown = f"seed {one.seed}" if one.seed is not None else f"survives {seeds} seeds"
        shown += f", is shown by seed {one.focused} in its own runs" if one.focused is not None else ""
        shown += f": {one.violation}" if one.violation else ""
        print(f"{one.name}: {shown}"[:200], flush=True)
        # At once: all of them take hours, and may be interrupted.
        keep([one], first=first, seeds=seeds)

    code = 0
    try:
        score(names, first=first, seeds=seeds, jobs=options.jobs, seen=tell)
    except LookupError as error:
        print(f"scripts/simulate: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    if not scores:
        return code
    print()
    for line in (*summary(scores, first, sorted({min(SEEDS, seeds), seeds})), *recorded((SEEDS, MANY_SEEDS))):
        print(line)
    return code


def _explore(options: argparse.Namespace, run: Simulate) -> int:
    first = _first_seed(options)
    total = options.seeds or (None if options.minutes is not None else SEEDS)
    seeds = itertools.count(first) if total is None else range(first, first + total)
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    with progress(total) as seen, _Interruption.noticed() as interruption:
        tally = explore(
            run,
            map(Plan, seeds),
            jobs=options.jobs,
            stopped=lambda: interruption.came or (deadline is not None and time.monotonic() >= deadline),
            seen=seen,
        )
    interrupted = interruption.came
    print_summary(tally, first=first, interrupted=interrupted)
    chosen = [] if interrupted else _of_different_kinds(tally.failures)
    _list(options, [report for report in tally.failures if report not in chosen])
    _shrink(options, run, chosen)
    return 1 if tally.failures else 0


def _shrink(options: argparse.Namespace, run: Simulate, failures: Sequence[Report]) -> None:
    """Print failing runs, and the smallest ones of them that still fail, as far as the options want that."""
    for report in failures:
        if options.seed is None:
            print_failure(report, _replay_options(options))
        if options.no_shrink:
            continue
        with in_worker(run, hang=SHRINK_SECONDS / 2) as run_there:
            smaller = shrink(report, run_there, seconds=SHRINK_SECONDS, tell=_tell)[1]
        if smaller.plan != report.plan:
            print_failure(smaller, _replay_options(options))


def _list(options: argparse.Namespace, failures: Sequence[Report]) -> None:
    for report in failures[:LISTED]:
        print(f"seed {report.plan.seed}: {report.violations[0]}")
        print(f"  replay: {replay_command(report.plan, _replay_options(options))}")
    if len(failures) > LISTED:
        print(f"and {len(failures) - LISTED} more failing seeds")


def _of_different_kinds(failures: Sequence[Report]) -> list[Report]:
    """Return the first failing runs of different kinds of violations."""
    first_ones: dict[str, Report] = {}
    for report in failures:
        first_ones.setdefault(kind_of(report.violations[0]), report)
    return list(first_ones.values())[:DETAILED]


def _tell(line: str) -> None:
    print(f"shrinking: {line}", file=sys.stderr, flush=True)


def _replay_options(options: argparse.Namespace) -> list[str]:
    """Return the options that a run depends on, beside its plan."""
    profile = [] if options.profile is None else [f"--{options.profile}"]
    return profile + [word for name in options.workload or () for word in ("--workload", name)]


def _first_seed(options: argparse.Namespace) -> int:
    if options.random:
        return random.SystemRandom().randrange(1 << 32)
    return options.first or 0


class _Interruption:
    """Whether Ctrl-C was pressed. Only the first one is noticed like this; a second one interrupts as usual.

    Attributes:
        came: whether it was.
    """

    came = False

    @classmethod
    @contextmanager
    def noticed(cls) -> Iterator[_Interruption]:
        """Notice Ctrl-C while the block runs, unless whoever started this process has it ignored."""
        interruption = cls()
        before = signal.getsignal(signal.SIGINT)
        if before is signal.SIG_IGN:
            yield interruption
            return
        signal.signal(signal.SIGINT, interruption._come)
        try:
            yield interruption
        finally:
            signal.signal(signal.SIGINT, before)

    def _come(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # In one piece, which `print` does not promise: the processes of the pool write there, too.
        sys.stderr.write("simulate: waiting for the runs under way; Ctrl-C again ends at once\n")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, 3)
    return f", did you mean {' or '.join(map(repr, near))}?" if near else ""


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return number


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes above 0")
    return minutes


if __name__ == "__main__":
    sys.exit(main())
