"""Defects of the rows of processes, and of what processes do when they are asked."""

from __future__ import annotations

from jobs_service.actors.process_row import ProcessRowWriter
from jobs_service.layer import process_rows
from jobs_service.service.presence import Presence
from tests.simulation.mutants.mutant import Defect, Mutant, changed

_THERE = ("operators", "handlers", "leavers")


def a_process_that_ends_leaves_what_it_was_asked() -> Defect:
    """At its end a process removes its row, and not what it was asked."""
    return changed(process_rows.remove, ("(PROCESSES, PROCESS_REQUESTS)", "(PROCESSES,)"))


def a_quiet_process_is_not_resumed() -> Defect:
    """A process that is quiet takes what it is asked next for done."""
    return changed(Presence._obey, ("self.is_quiet == (action is ProcessAction.QUIET)", "self.is_quiet"))


def a_process_hears_the_first_request_only() -> Defect:
    """A process does not look again when it was asked something else."""
    return changed(ProcessRowWriter._listen, ("await watch.wait()", "await asyncio.Event().wait()"))


ALL = (
    Mutant(a_process_that_ends_leaves_what_it_was_asked, "calm", _THERE),
    Mutant(a_quiet_process_is_not_resumed, "calm", _THERE),
    Mutant(a_process_hears_the_first_request_only, "calm", _THERE),
)
