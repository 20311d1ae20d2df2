"""Defects of the bounds of batches, and of what keeps an unreadable record from others."""

from __future__ import annotations

from jobs_service.actors.notifier import Notifier
from jobs_service.batching import group_commit
from jobs_service.batching.group_commit import GroupCommit
from jobs_service.layer import batch_bounds, queue, strays
from jobs_service.layer.batch_bounds import Pace
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.runner.heartbeat import Heartbeat
from jobs_service.service.bulk import BulkCreation
from tests.simulation.mutants.mutant import Defect, Mutant, changed, together

_BULK = ("bulk", "workers", "creators", "resubmitters")
_RUNNERS = ("handlers", "workers")
_DAMAGE = ("creators", "workers", "vandals", "heartbeats", "deserters")

# Bounds in bytes


def all_that_is_found_fits() -> Defect:
    """Whoever takes many jobs at once rewrites all of them in one transaction."""
    return changed(UnitOfWork.fitting, ("if not room.takes(size) and position:", "if False:"))


def due_jobs_have_no_bound_in_bytes() -> Defect:
    """All jobs that come due are made ready in one transaction."""
    return changed(queue.make_ready, ("unit.load_fitting(", "unit.load_many("))


def accepted_jobs_have_no_bound_in_bytes() -> Defect:
    """Whoever asks for a thousand jobs gets them in one transaction."""
    return changed(queue.accept, ("unit.load_fitting(keys, ids)", "unit.load_many(keys, ids)"))


def added_jobs_have_no_bound_in_bytes() -> Defect:
    """add_many looks at the number of jobs only."""
    return changed(BulkCreation._batches, (" or size + takes > budget", ""))


def jobs_that_run_are_kept_alive_in_one_transaction() -> Defect:
    """Heartbeats have no bound: neither are they sent in parts, nor in halves when they were too much."""
    return changed(
        Heartbeat._renew,
        ("self._pace.through(alive, lambda run: run.size, lambda part: self._renew_part(part, failed))", "part"),
        ("        try:\n", "        part = self._renew_part(alive, failed)\n        try:\n"),
    )


def the_operations_of_a_turn_are_one_transaction() -> Defect:
    """What is asked for in one turn of the loop has no bound, and nobody halves it when it was too much."""
    return together(
        changed(
            GroupCommit._send,
            ("position - first == _MOST_OPERATIONS or (size > _MOST_BYTES and position > first)", "False"),
        ),
        changed(
            group_commit._do,
            ("if first and unit.is_full:", "if False:"),
            ("if answers and unit.is_full:", "if False:"),
        ),
        changed(GroupCommit._run, ("except _HALVED as error:", "except () as error:")),
    )


def a_batch_is_not_halved() -> Defect:
    """Whoever meets an old read version with many jobs gives up instead of trying fewer."""
    return changed(Pace.fitting, ("if size == 1:", "if True:"))


def one_job_is_too_much() -> Defect:
    """Whoever meets an old read version with a single job gives up instead of trying again."""
    return changed(batch_bounds.too_much_for, ("TOO_MUCH if size > 1 else (TransactionTooLarge,)", "TOO_MUCH"))


# Records that cannot be read


def an_unreadable_record_fails_whoever_reads_it_with_others() -> Defect:
    """Operations that share a transaction with one on a damaged job fail with it."""
    return changed(UnitOfWork.prefetch, ("self.damaged[data_key] = error.of(keys.type, id)", "raise"))


def unreadable_jobs_stay_in_the_queue() -> Defect:
    """Every look at an index meets the damaged jobs in it again."""
    return changed(strays.take_out, ("unit.transaction.clear(index_key)", "pass"))


def an_unreadable_record_ends_the_notifier() -> Defect:
    """Whoever subscribes to a damaged job brings down those who tell of all others."""
    return changed(Notifier._report, ("target.fail(error.of(target.keys.type, target.id))", "raise"))


ALL = (
    Mutant(all_that_is_found_fits, workloads=_BULK),
    Mutant(due_jobs_have_no_bound_in_bytes, workloads=_BULK),
    Mutant(accepted_jobs_have_no_bound_in_bytes, workloads=_BULK),
    Mutant(added_jobs_have_no_bound_in_bytes, workloads=_BULK),
    Mutant(jobs_that_run_are_kept_alive_in_one_transaction, workloads=_RUNNERS),
    Mutant(the_operations_of_a_turn_are_one_transaction, workloads=_BULK),
    Mutant(a_batch_is_not_halved),
    Mutant(one_job_is_too_much),
    Mutant(an_unreadable_record_fails_whoever_reads_it_with_others, workloads=_DAMAGE),
    Mutant(unreadable_jobs_stay_in_the_queue, workloads=_DAMAGE),
    Mutant(an_unreadable_record_ends_the_notifier, workloads=_DAMAGE),
)
