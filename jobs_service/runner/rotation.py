"""Chooses the runs that give up their slots: those beyond the number of slots, and continuous jobs in turn.

Pure functions without a clock and a store. The order is that of CouchDB's couch_replicator_scheduler (April 2017): the
longest running job stops first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from jobs_service.model import HistoryEvent, HistoryKind


class SlotHolder(Protocol):
    """A job that runs, as rotation sees it."""

    @property
    def continuous(self) -> bool:
        """Whether the job never ends by itself, and so can be asked to give up its slot."""

    @property
    def at(self) -> float:
        """Start of the run, in seconds of a monotonic clock."""

    @property
    def history(self) -> Sequence[HistoryEvent]:
        """The job's events, newest first."""


SlotHolderT = TypeVar("SlotHolderT", bound=SlotHolder)


def excess(running: Iterable[SlotHolderT], slots: int) -> list[SlotHolderT]:
    """Choose the runs to stop when they exceed the slots: continuous runs first, longest running first."""
    runs = sorted(running, key=lambda run: (not run.continuous, _began(run)))
    return runs[: max(len(runs) - slots, 0)]


def rotation(running: Iterable[SlotHolderT]) -> list[SlotHolderT]:
    """Return the continuous jobs in the order of giving up their slots: longest running first."""
    return sorted((run for run in running if run.continuous), key=_began)


def _began(run: SlotHolder) -> tuple[float, ...]:
    # The clock of this process comes first, because wall clocks are set, and a history may be cut or damaged. Jobs that
    # one transaction accepted began at the same time; then their earlier starts decide, or the same ones always lose.
    return (run.at, *(event.at for event in run.history if event.kind is HistoryKind.STARTED))
