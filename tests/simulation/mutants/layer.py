"""Defects of the layer: jobs as keys and values."""

from __future__ import annotations

from collections.abc import Sequence

from jobs_service.layer import activity, candidates, creation, queue, running_jobs
from jobs_service.layer.entry import Entry, clear_index
from jobs_service.layer.key_parts import unpack_id
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import Record
from jobs_service.layer.unit_of_work import UnitOfWork
from tests.simulation.mutants.mutant import Defect, Mutant, changed, together


async def by_snapshot(unit: UnitOfWork, keys: TypeKeys, packed_ids: Sequence[bytes]) -> list[Entry]:
    """Do what Unit.load_many does, without read conflicts."""
    wanted = {keys.data + packed_id: packed_id for packed_id in packed_ids}
    missing = [data_key for data_key in wanted if data_key not in unit.entries]
    raws = await unit.transaction.snapshot.get_many(missing)
    for data_key, raw in zip(missing, raws, strict=True):
        unit.entries[data_key] = Entry(keys, unpack_id(wanted[data_key]), wanted[data_key], raw)
    return [unit.entries[data_key] for data_key in wanted]


# Conflicts


def accept_claims_nothing_that_it_takes() -> Defect:
    """With spread, accept adds no conflict key for what it takes, and reads the records by snapshot."""
    return changed(
        queue.accept,
        ("_claim(unit, taken)", "pass"),
        ("unit.load_fitting(keys, ids)", "by_snapshot(unit, keys, ids)"),
        by_snapshot=by_snapshot,
    )


def accept_reads_records_by_snapshot() -> Defect:
    """Accept claims the place in the queue only: what a creator changes meanwhile is lost."""
    return changed(
        queue.accept,
        ("unit.load_fitting(keys, ids)", "by_snapshot(unit, keys, ids)"),
        by_snapshot=by_snapshot,
    )


def accept_reads_the_queue_by_snapshot() -> Defect:
    """Exact order, but a job that comes in at the front meanwhile is no conflict."""
    return changed(
        queue.accept,
        ("_claim_front(unit, keys, terms, taken, len(ids) < terms.limit)", "pass"),
    )


def accept_claims_no_part_of_a_queue_that_it_empties() -> Defect:
    """Exact order, but who takes all there are claims nothing: one that comes in before these is overlooked."""
    return changed(queue._claim_front, ("elif taken:", "elif taken and not all_taken:"))


def the_activity_monitor_reads_by_snapshot() -> Defect:
    """A job that is updated or finished while it is taken for lost is no conflict."""
    return changed(
        activity.re_enqueue,
        ("unit.load_fitting(keys, [", "by_snapshot(unit, keys, ["),
        by_snapshot=by_snapshot,
    )


def records_are_read_by_snapshot() -> Defect:
    """Update, finish, add and all others read the job that they change without a conflict."""
    return together(
        changed(
            UnitOfWork._read_one,
            ("raw = await self.transaction.get(", "raw = await self.transaction.snapshot.get("),
            ("self.transaction.get_many(", "self.transaction.snapshot.get_many("),
        ),
        changed(UnitOfWork.prefetch, ("self.transaction.get_many(", "self.transaction.snapshot.get_many(")),
    )


# Index entries and signals


def activity_entry_is_not_cleared() -> Defect:
    """A job that is updated or ends leaves its old ACTIVITY entry behind."""
    return changed(clear_index, ("transaction.clear(keys.activity_head + record.seq)", "pass"))


def ready_entry_is_not_cleared_on_resubmit() -> Defect:
    """A pending job that gets another priority is in the queue twice."""
    return changed(
        creation._resubmit,
        ("    moved = record.with_json(json)\n", "    moved = record.with_json(json)\n    entry.record = None\n"),
    )


def scheduled_entry_is_not_cleared() -> Defect:
    """A job that is made ready, removed or resubmitted stays among the scheduled ones."""
    return changed(clear_index, ("transaction.clear(scheduled_key(entry, record))", "pass"))


def update_is_no_activity() -> Defect:
    """WATCH_ACTIVITY is not stamped on update: no subscriber sees the new data."""
    return changed(
        running_jobs.update,
        ("    return entry\n", "    unit._active.clear()\n    return entry\n"),
    )


def release_wakes_nobody() -> Defect:
    """WATCH_PENDING is not bumped when a job is given back."""
    return changed(
        running_jobs.stop,
        ("return await _give_back(", "entry = await _give_back("),
        ("RELEASED)\n", "RELEASED)\n    unit._woken.clear()\n    return entry\n"),
    )


def update_keeps_its_seq() -> Defect:
    """An update is no sign of life: the job's place in ACTIVITY stays where it was."""
    return changed(running_jobs.update, ("running(lock, unit.new_seq())", "running(lock, record.seq)"))


# The operations table


def any_lock_will_do() -> Defect:
    """A worker that has lost its job may still update, finish or release it while another one runs it."""
    return changed(running_jobs._held, ("record.lock != lock", "record.lock is None"))


def finish_ignores_cancel() -> Defect:
    """A canceled job that was resubmitted before runs again; one that was not counts as succeeded."""
    return changed(running_jobs.finish, ("if record.cancel:", "if False:"))


def finish_ignores_resubmit() -> Defect:
    """A running job that somebody resubmitted ends for good."""
    return changed(running_jobs.finish, ("if record.next is not None and not record.cancel:", "if False:"))


def finish_keeps_the_resubmit_flag() -> Defect:
    """A job that was resubmitted once runs again and again."""
    return changed(running_jobs.finish, ("record.with_next(None).with_run_data(", "record.with_run_data("))


def finish_keeps_the_cancel_flag() -> Defect:
    """A canceled job is finished and canceled still."""
    return changed(Record.finished, ("outcome, False, None", "outcome, self.cancel, None"))


def canceled_jobs_are_given_back() -> Defect:
    """A canceled job that is released or lost runs again."""
    return changed(running_jobs._give_back, ("if record.cancel:", "if False:"))


def release_keeps_the_lock() -> Defect:
    """A job that was given back runs on, with nobody there to finish it."""
    return changed(
        running_jobs.stop,
        (
            "await _give_back(unit, entry, record, packed, record.run_at if run_at is None else run_at, RELEASED)",
            "unit.replace(entry, record.running(lock, unit.new_seq()))",
        ),
    )


def resubmit_changes_data_of_a_running_job() -> Defect:
    """A creator's resubmit replaces what the worker has written."""
    return changed(
        creation._resubmit,
        ("record.with_next(following)", "record.with_next(following).with_json(spec.applied_to(record)[0])"),
    )


def resubmit_resets_a_running_job() -> Defect:
    """A creator's resubmit, or add by that rule, takes a running job away from its worker."""
    return changed(creation._resubmit, ("if record.state is JobState.RUNNING:", "if False:"))


def resubmit_loses_the_place_in_the_queue() -> Defect:
    """A pending job that is resubmitted without any change goes to the end of the queue."""
    return changed(
        creation._resubmit,
        ("if record.place and (priority, run_at) == (record.priority, record.run_at):", "if False:"),
    )


def locks_are_given_again() -> Defect:
    """Every job of a type has the same lock: a worker that has lost its job is not told so."""
    return changed(UnitOfWork.new_locks, ("self.sources.token(count * LOCK_BYTES)", 'b"l" * (count * LOCK_BYTES)'))


# The queue


def the_queue_is_ordered_by_id() -> Defect:
    """Within a priority the lowest id comes first, not the job that was ready first."""
    return changed(
        candidates._ready_in_store,
        ("    limit = wanted\n", "    limit = PAGE\n"),
        ("return places[:wanted]", "return sorted(places, key=lambda place: (place[0][0], place[1]))[:wanted]"),
        ("len(found) < limit or len(places) >= wanted", "len(found) < limit"),
    )


def max_priority_leaves_its_own_out() -> Defect:
    """Jobs of exactly the priority up to which a worker takes jobs are not taken."""
    return changed(
        candidates._ready_in_store, ("keys.ready + terms.max_priority + AFTER", "keys.ready + terms.max_priority")
    )


def jobs_are_ready_before_their_time() -> Defect:
    """A job that is due within two seconds is taken for due."""
    return changed(UnitOfWork.place_for, ("run_at <= self.now", "run_at <= self.now + 2.0"))


def make_ready_begins_at_the_end() -> Defect:
    """Of several jobs that are due, the one that is due last comes first."""
    return changed(queue.make_ready, ("limit=limit\n", "limit=limit, reverse=True\n"))


ALL = (
    Mutant(accept_claims_nothing_that_it_takes),
    Mutant(accept_reads_records_by_snapshot, workloads=("creators", "resubmitters", "workers", "crowds")),
    Mutant(accept_reads_the_queue_by_snapshot, workloads=("creators", "resubmitters", "workers", "crowds")),
    Mutant(
        accept_claims_no_part_of_a_queue_that_it_empties, workloads=("creators", "resubmitters", "workers", "crowds")
    ),
    Mutant(the_activity_monitor_reads_by_snapshot, workloads=("creators", "heartbeats", "workers")),
    Mutant(records_are_read_by_snapshot),
    Mutant(activity_entry_is_not_cleared),
    Mutant(ready_entry_is_not_cleared_on_resubmit),
    Mutant(scheduled_entry_is_not_cleared, workloads=("creators", "workers")),
    Mutant(update_is_no_activity),
    Mutant(release_wakes_nobody),
    Mutant(update_keeps_its_seq),
    Mutant(any_lock_will_do, workloads=("creators", "heartbeats", "measurers", "workers")),
    Mutant(finish_ignores_cancel),
    Mutant(finish_ignores_resubmit),
    Mutant(finish_keeps_the_resubmit_flag),
    Mutant(finish_keeps_the_cancel_flag),
    Mutant(canceled_jobs_are_given_back),
    Mutant(release_keeps_the_lock),
    Mutant(resubmit_changes_data_of_a_running_job),
    Mutant(resubmit_resets_a_running_job),
    Mutant(resubmit_loses_the_place_in_the_queue),
    Mutant(locks_are_given_again),
    Mutant(the_queue_is_ordered_by_id),
    Mutant(max_priority_leaves_its_own_out),
    Mutant(jobs_are_ready_before_their_time),
    Mutant(make_ready_begins_at_the_end, "calm", ("creators", "resubmitters", "overseers", "closers")),
)
