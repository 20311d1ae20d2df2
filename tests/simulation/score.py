"""How many of the deliberate defects the simulation finds by itself: in its usual mix, one seed after the other.

Nothing is chosen for a defect: no weather, no workloads, no seed that is known to show it. Some of those that survive
name the runs in which they are to show; of these the first seed is looked for beside, and does not count.
"""

from __future__ import annotations

import gc
import json
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from logging import WARNING
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from jobs_service.testing import Plan
from tests.simulation.mutants import ALL, EVERY, SLIPS, UNSEEN, Mutant
from tests.simulation.report import Report
from tests.simulation.run import Run, simulate

FILE: Final = Path(__file__).parent / "mutants" / "scores.json"
"""The seeds that showed mutants when they were measured last: in the usual mix, in the runs that mutants name, and, of
those of UNSEEN, in the usual mix."""

_MOST_BYTES: Final = 3 << 30
"""Memory of a process that looks for seeds; a hundred megabytes are usual."""

BROKEN: Final = ("NameError", "UnboundLocalError", "ImportError")
"""What a mutant raises that is no defect of the service, but nonsense."""


class UntilFailure(Run):
    """A run that ends as soon as anything is wrong."""

    def complain(self, violation: str) -> None:
        super().complain(violation)
        self.world.loop.stop()


@dataclass(frozen=True)
class Score:
    """What became of one mutant.

    Attributes:
        name: of the mutant.
        seed: the first one that showed it; None if none did.
        violation: what was wrong in that run.
        focused: if none did, the first that showed it in the runs that it names; None if none did, or it names none.
    """

    name: str
    seed: int | None
    violation: str = ""
    focused: int | None = None


def first_failure(mutant: Mutant, seeds: Iterable[int], *, focused: bool = False) -> Report | None:
    """Return the first run that a mutant makes fail.

    Args:
        seeds: in their order.
        focused: in the weather and with the workloads in which it is to show; else in the usual mix.
    """
    profile, workloads, rates = (mutant.profile, mutant.workloads, mutant.rates) if focused else (None, None, None)
    with mutant.defect():
        for seed in seeds:
            report = simulate(
                Plan(seed), profile=profile, workloads=workloads, log_level=WARNING, rates=rates, kind=UntilFailure
            )
            if report.violations:
                return report
    return None


def score(
    names: Sequence[str], *, first: int, seeds: int, jobs: int, seen: Callable[[Score], object] = lambda score: None
) -> list[Score]:
    """Look for the first seed that shows each mutant.

    Args:
        names: of the mutants.
        first, seeds: the seeds that are tried.
        jobs: the number of worker processes.
        seen: called with each score, in the order in which they come.
    """
    found = {}
    work = partial(_score_one, first=first, seeds=seeds)
    # A process for a few mutants each: what a defect leaves behind does not add up.
    with get_context("spawn").Pool(jobs, initializer=_bound_memory, maxtasksperchild=4) as pool:
        for one in pool.imap_unordered(work, names):
            found[one.name] = one
            seen(one)
    return [found[name] for name in names]


def _bound_memory() -> None:
    """Have what a defect reads without an end be a MemoryError: a pool waits for ever for a process that was killed."""
    with suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))


def _score_one(name: str, *, first: int, seeds: int) -> Score:
    gc.freeze()  # What is imported stays: the collection after each run need not go through it.
    mutant = next(each for each in (*EVERY, *UNSEEN) if each.name == name)
    try:
        report = first_failure(mutant, range(first, first + seeds))
    except LookupError as error:
        raise LookupError(f"the mutant {name!r} cannot be planted: {error}") from None
    if report is not None:
        return Score(name, report.plan.seed, report.violations[0])
    if not mutant.has_runs_of_its_own:
        return Score(name, None)
    report = first_failure(mutant, range(first, first + seeds), focused=True)
    return Score(name, None) if report is None else Score(name, None, report.violations[0], report.plan.seed)


def summary(scores: Sequence[Score], first: int, limits: Sequence[int]) -> Iterator[str]:
    """Yield a line for each number of seeds: how many mutants they show."""
    for limit in limits:
        caught = sum(each.seed is not None and each.seed < first + limit for each in scores)
        yield f"{limit} seeds show {caught} of {len(scores)} mutants, {caught / len(scores):.0%}"


def recorded(limits: Sequence[int], file: Path = FILE) -> Iterator[str]:
    """Yield a line for each number of seeds: how many of all mutants they show, by what the file says."""
    usual = known_seeds(file)["usual"]
    for limit in limits:
        ours, others = (sum(usual.get(each.name, limit) < limit for each in kind) for kind in (ALL, SLIPS))
        share = (ours + others) / len(EVERY)
        yield (
            f"as recorded, {limit} seeds show {ours + others} of all {len(EVERY)} mutants, {share:.0%}: {ours} of "
            f"{len(ALL)} by those who wrote the checks, {others} of {len(SLIPS)} by somebody who had not read them"
        )


def known_seeds(file: Path = FILE) -> dict[str, dict[str, int]]:
    """Return the seeds that showed mutants when they were measured last, by name: "usual", "focused", "unseen" ones."""
    seeds: dict[str, dict[str, int]] = json.loads(file.read_text())
    return seeds


def keep(scores: Sequence[Score], *, first: int, seeds: int, file: Path = FILE) -> None:
    """Write the seeds to the file; what it says of a mutant stays where these seeds say nothing against it.

    Args:
        scores: of some mutants.
        first, seeds: the seeds that were tried.
        file: the file.
    """
    known, unseen = known_seeds(file), {mutant.name for mutant in UNSEEN}
    for each in scores:
        usual = "unseen" if each.name in unseen else "usual"
        for kind, seed in ((usual, each.seed), ("focused", each.focused)):
            before = known[kind].get(each.name)
            is_refuted = before is not None and first <= before < first + seeds
            if seed is not None and (before is None or is_refuted or seed < before):
                known[kind][each.name] = seed
            elif is_refuted and (kind == usual or each.seed is None):
                del known[kind][each.name]
        if each.name in known["usual"]:
            known["focused"].pop(each.name, None)
    file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
