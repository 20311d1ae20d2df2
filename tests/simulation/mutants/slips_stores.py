"""Slips in the stores, made without a look at what the simulation checks."""

from __future__ import annotations

from jobs_service.store.commit_marks import Marks
from jobs_service.store.fdb import FdbStore
from jobs_service.store.fdb.attempts import Attempts
from jobs_service.store.fdb.sweeper import _Page
from jobs_service.store.fdb.transaction import FdbTransaction, _Reads
from jobs_service.store.fdb.watches import FdbWatches
from jobs_service.store.lmdb import LmdbStore
from jobs_service.store.lmdb.environment import open_environment
from jobs_service.store.lmdb.process_locks import ProcessLocks
from jobs_service.store.lmdb.room import Room
from jobs_service.store.lmdb.watches import Watches
from jobs_service.store.memory import MemoryStore, MemoryTransaction
from jobs_service.store.mvcc import Versions
from jobs_service.store.read_your_writes import BufferedTransaction
from tests.simulation.mutants.mutant import Defect, Mutant, changed

# Transactions over a base state


def the_last_key_of_a_range_that_was_cut_is_no_conflict() -> Defect:
    """A range that was read up to a limit conflicts up to its last key, but not with that."""
    return changed(BufferedTransaction.get_range_now, ('end = found[-1][0] + b"\\x00"', "end = found[-1][0]"))


def a_counter_that_is_added_to_and_read_is_no_conflict() -> Defect:
    """Who reads back what it has added to a key relies on the key without a conflict."""
    return changed(BufferedTransaction._sum, ("if reads is not None:", "if False:"))


def a_cleared_range_leaves_what_was_written_in_it() -> Defect:
    """A transaction that clears a range still sees what it has itself written there before."""
    return changed(BufferedTransaction.clear_range, ("            del self._written[key]\n", "            pass\n"))


def a_watch_is_blind_while_its_transaction_ends() -> Defect:
    """A change between what a watching transaction has read and its end does not fire the watch."""
    return changed(MemoryStore.apply, ("            self._wake(watch.key)\n", "            pass\n"))


def watches_of_a_failed_transaction_are_not_lost() -> Defect:
    """The watches of a transaction that did not commit are not failed: who waits on them waits for ever."""
    return changed(MemoryTransaction.end, ("if not self.committed:", "if False:"))


def a_conflict_is_found_in_the_oldest_write_only() -> Defect:
    """A key that was written several times since is compared with the first of these writes."""
    return changed(Versions.conflict, ("before[begin][-1][0] > version", "before[begin][0][0] > version"))


# FoundationDB


def stale_marks_are_removed_without_a_conflict() -> Defect:
    """A mark that was written anew since it was seen is removed all the same."""
    return changed(
        _Page.__call__,
        ("for key in stale:\n            transaction.add_read_conflict_key", "for key in stale:\n            bytes"),
    )


def a_tombstone_is_taken_for_a_mark() -> Defect:
    """Whatever is in a mark's place says that its commit happened."""
    return changed(Marks.stamp_of, ("value is not None and value[STAMP_BYTES:] == HAPPENED", "value is not None"))


def marks_of_a_prevented_commit_are_left() -> Defect:
    """Old marks that a commit which never happened was to remove are forgotten."""
    return changed(Marks.prevented, ("[mark.key, *mark.removed]", "[mark.key]"))


def a_mark_is_removed_before_its_commit_is_known() -> Defect:
    """The mark of a commit of which nobody could find out is removed together with later ones."""
    return changed(
        Marks.not_committed, ("self._remove_later(mark.removed)", "self._remove_later([mark.key, *mark.removed])")
    )


def marks_are_removed_again_and_again() -> Defect:
    """Marks that a commit removes stay among those that are to be removed."""
    return changed(Marks.new, ("        del self._settled[-_MOST_REMOVED:]\n", ""))


def an_unknown_tombstone_counts_as_written() -> Defect:
    """A tombstone whose own commit is unknown counts as written."""
    return changed(
        FdbStore._find_out,
        (
            "if not failure.retryable and not may_have_committed(error.code):",
            "if may_have_committed(error.code):\n"
            "                    return None\n"
            "                if not failure.retryable:",
        ),
    )


def a_commit_that_comes_late_is_not_told_of() -> Defect:
    """A commit that comes through after its caller has gone gives nothing back."""
    return changed(
        FdbStore._come_late,
        ("if failure is None and abandoned is not None:", "if failure is not None and abandoned is not None:"),
    )


def watches_of_a_writer_begin_when_they_are_made() -> Defect:
    """What changes between a commit and the making of its watches does not fire them."""
    return changed(
        FdbStore._try_to_watch,
        ("if watch not in same:\n", "if False:\n"),
    )


def a_moved_directory_is_found_but_not_told() -> Defect:
    """Who was told that the keys are elsewhere than they are goes on with the old ones."""
    return changed(
        FdbStore._check_directory,
        ("if expected is not None and expected != self._prefix:", "if expected is not None and self._prefix is None:"),
    )


def polled_watches_are_compared_with_nothing() -> Defect:
    """Watches beyond the client's limit fire only for keys that have gone."""
    return changed(FdbWatches._look_at, ("value != watch.baseline", "value is None is not watch.baseline"))


def lost_watches_are_never_fired() -> Defect:
    """A watch that the client has given up fires nobody."""
    return changed(FdbWatches._lose, ("self._fire_lost, watch, failure)", "self._lost.pop, watch, None)"))


def a_range_of_several_replies_has_keys_twice() -> Defect:
    """Each further reply of a range begins with the last key of the one before."""
    return changed(_Reads._pairs, ("first_greater_than(found[-1][0])", "first_greater_or_equal(found[-1][0])"))


def what_was_expected_is_answered_after_writes() -> Defect:
    """A read that was sent ahead answers although the transaction has written since."""
    return changed(
        _Reads._expected_reply, ("len(keys) != 1 or self._expected_at != self._transaction.size", "len(keys) != 1")
    )


def a_transaction_that_was_too_old_may_commit() -> Defect:
    """An error of a read that another run may not meet does not keep its transaction from committing."""
    return changed(FdbTransaction.met, ("if ours.retryable:", "if not ours.retryable:"))


def functions_are_run_once_less() -> Defect:
    """How often a function is run again at most is counted down twice."""
    return changed(Attempts.again, ("self._left -= 1", "self._left = 0"))


# The embedded store


def a_commit_is_not_flushed() -> Defect:
    """A commit of a durable store is answered before it is on disk."""
    return changed(
        open_environment, ("metasync=settings.durable", "metasync=settings.durable, sync=not settings.durable")
    )


def own_commits_hide_those_of_others() -> Defect:
    """A look that finds commits of this process takes all that are new for its own."""
    return changed(LmdbStore._changed_elsewhere, ("if number - seen <= own or", "if own or"))


def a_commit_overtakes_a_watch() -> Defect:
    """What another process commits while watches are being registered does not fire them."""
    return changed(LmdbStore._read, ("fired += self._changed_since(number, watched)", "pass"))


def a_look_that_came_too_soon_counts() -> Defect:
    """A look that is put off, because the last one took long, is taken for done."""
    return changed(
        LmdbStore._changed_elsewhere,
        (
            "        if now < self._next_look:\n            return []",
            "        if now < self._next_look:\n            self._seen_commit = number\n            return []",
        ),
    )


def a_failed_batch_fails_the_innocent() -> Defect:
    """When the commit of several requests fails, all of them fail."""
    return changed(LmdbStore._retry_alone, ("if len(answers) > 1 or", "if len(answers) < 1 or"))


def versionstamps_of_a_batch_are_the_same() -> Defect:
    """Requests that share an LMDB transaction share their versionstamp."""
    return changed(LmdbStore._commit, ("                    place += 1\n", "                    place = 1\n"))


def an_abandoned_result_is_dropped() -> Defect:
    """What a request has come to whose caller gave up in that very turn of the loop is told to nobody."""
    return changed(LmdbStore._ask, ("                self._abandon(request)\n", "                pass\n"))


def watches_of_one_key_expect_the_same() -> Defect:
    """Of several watches on a key that expect different values only the first one's is looked for."""
    return changed(Watches.register, ("self._expected[key] = _SEVERAL", "pass"))


def a_watch_fires_for_its_own_transaction() -> Defect:
    """A watch is compared with states older than its own."""
    return changed(Watches._take, ("watch.baseline != value and made <= number", "watch.baseline != value"))


def removals_do_not_go_through_on_a_full_store() -> Defect:
    """The reserve of a full store is not opened for what ends or removes jobs."""
    return changed(Room.admit, ("own.is_urgent and size", "not own.is_urgent and size"))


def a_full_disk_refuses_what_makes_room() -> Defect:
    """A transaction is refused by its size, not by whether the store grows by it."""
    return changed(Room.admit, (" and grows(own)", ""))


def only_the_first_processes_are_looked_at() -> Defect:
    """A look at other processes does not begin anew behind the last of them."""
    return changed(ProcessLocks._others, ("names[start:] + names[:start]", "names[start:]"))


def a_new_process_may_be_taken_for_dead() -> Defect:
    """A process whose lock file was removed, before it was locked, goes on without one."""
    return changed(ProcessLocks.enter, ("lock_file(descriptor) and _is_at(path, descriptor)", "lock_file(descriptor)"))


def the_locks_of_the_dead_are_kept() -> Defect:
    """A store that is closed keeps the locks of dead processes, which nobody else finds then."""
    return changed(ProcessLocks.leave, ("            close_file(descriptor)\n", "            pass\n"))


def the_files_of_dead_processes_are_left() -> Defect:
    """Processes whose jobs were taken are found dead again and again."""
    return changed(ProcessLocks.forget, ("if not _remove(self._path(instance)):", "if False:"))


ALL = tuple(
    map(
        Mutant,
        (
            the_last_key_of_a_range_that_was_cut_is_no_conflict,
            a_counter_that_is_added_to_and_read_is_no_conflict,
            a_cleared_range_leaves_what_was_written_in_it,
            a_watch_is_blind_while_its_transaction_ends,
            watches_of_a_failed_transaction_are_not_lost,
            a_conflict_is_found_in_the_oldest_write_only,
            stale_marks_are_removed_without_a_conflict,
            a_tombstone_is_taken_for_a_mark,
            marks_of_a_prevented_commit_are_left,
            a_mark_is_removed_before_its_commit_is_known,
            marks_are_removed_again_and_again,
            an_unknown_tombstone_counts_as_written,
            a_commit_that_comes_late_is_not_told_of,
            watches_of_a_writer_begin_when_they_are_made,
            a_moved_directory_is_found_but_not_told,
            polled_watches_are_compared_with_nothing,
            lost_watches_are_never_fired,
            a_range_of_several_replies_has_keys_twice,
            what_was_expected_is_answered_after_writes,
            a_transaction_that_was_too_old_may_commit,
            functions_are_run_once_less,
            a_commit_is_not_flushed,
            own_commits_hide_those_of_others,
            a_commit_overtakes_a_watch,
            a_look_that_came_too_soon_counts,
            a_failed_batch_fails_the_innocent,
            versionstamps_of_a_batch_are_the_same,
            an_abandoned_result_is_dropped,
            watches_of_one_key_expect_the_same,
            a_watch_fires_for_its_own_transaction,
            removals_do_not_go_through_on_a_full_store,
            a_full_disk_refuses_what_makes_room,
            only_the_first_processes_are_looked_at,
            a_new_process_may_be_taken_for_dead,
            the_locks_of_the_dead_are_kept,
            the_files_of_dead_processes_are_left,
        ),
    )
)
