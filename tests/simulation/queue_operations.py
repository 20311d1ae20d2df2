"""Does the operations on a type's queue again, and those that take jobs away: many jobs at a time."""

from __future__ import annotations

from itertools import islice
from typing import Any

from jobs_service.layer.keyspace import AFTER, STAMP_CODE, pack_seconds
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.record import LOCK_BYTES, Record
from jobs_service.model import JobId
from jobs_service.sources import MOST_AHEAD
from tests.simulation.claims import depends_on, ranges_of
from tests.simulation.complaints import named, shown, shown_terms
from tests.simulation.entry import Entry
from tests.simulation.model_job import READY, RUNNING, SCHEDULED, Key, ModelJob, column
from tests.simulation.replay import TOLERANCE, Replay, Silence


class QueueOperations(Replay):
    """Does these operations again."""

    def _note_cut(self, entry: Entry) -> None:
        self._cut = True

    # The queue

    def _make_ready(self, entry: Entry) -> None:
        until, limit = entry.arguments
        self._cut = False
        moved = self._found(entry)
        if not moved:
            return
        model = self.model
        if len(moved) > limit:
            self.complain(f"{self.who()}: make ready of {entry.type!r} moved {len(moved)} jobs, {limit} at most")
        latest = -float("inf")
        for id, record in moved:
            key = self.key(entry.type, id)
            job = model.jobs.get(key)
            self.cells["make ready", column(job)] += 1
            if job is None or job.state is not SCHEDULED or job.run_at is None:
                self.complain(f"{self.who()}: make ready moved {named(*key)}, which is {shown(job)}")
                continue
            if job.run_at > min(until, entry.now):
                early = job.run_at - min(until, entry.now)
                self.complain(f"{self.who()}: make ready moved {named(*key)} {early:g} s before its time")
            if job.run_at < latest:
                self.complain(f"{self.who()}: make ready moved {named(*key)} after one that was due later")
            latest = max(latest, job.run_at)
            self._check(entry, key, model.make_ready(key), record)
        for key in model.scheduled(entry.type):
            left = model.jobs[key]
            if left.run_at is None or left.run_at >= latest:
                return
            if self._was_there(left):
                self.complain(f"{self.who()}: make ready left {named(*key)} out, and moved jobs that are due later")

    def _set_right(self, entry: Entry) -> None:
        for id, record in self._found(entry) or []:
            key = self.key(entry.type, id)
            job = self.model.jobs.get(key)
            self.cells["set right", column(job)] += 1
            if job is None or not job.notes.history or job.notes.history[0][1] <= entry.now + MOST_AHEAD:
                self.complain(f"{self.who()}: {named(*key)} was set right, but is {shown(job)}")
            else:
                self._check(entry, key, self.model.set_right(key, entry.now), record)

    def _accept(self, entry: Entry) -> None:
        terms: AcceptTerms = entry.arguments[0]
        taken = self._found(entry)
        cut, self._cut = self._cut, False
        if taken is None:
            return
        due_by = entry.now if terms.due_by is None else terms.due_by
        if self._is_paused(entry.type):
            if taken:
                self.complain(
                    f"{self.who()}: accept of {entry.type!r}, which is paused, took {[id for id, _ in taken]}"
                )
        elif terms.spread == 1 or entry.type in self.in_order:
            self._check_exact(entry, terms, due_by, taken, cut)
        else:
            self._check_spread(entry, terms, due_by, taken, cut)
        if taken and terms.spread == 1 and self._transaction.commit_version is not None:
            self._check_claim(entry, terms, due_by, taken, cut)
        for id, record in taken:
            key = self.key(entry.type, id)
            job = self.model.jobs.get(key)
            if job is not None and job.pending:
                self._take(entry, key, job, due_by, record, terms)

    def _check_exact(
        self, entry: Entry, terms: AcceptTerms, due_by: float, taken: list[tuple[JobId, Any]], cut: bool
    ) -> None:
        limit = max(1, min(len(taken), terms.limit)) if cut else terms.limit
        if self._met_damage:  # A look that takes damaged jobs out of the queue may end with fewer: another one follows.
            limit = min(limit, len(taken))
        expected = self.model.first(entry.type, limit, terms.max_priority, due_by, entry.now)
        got = [id for id, _ in taken]
        if terms.open_end:
            # Those that came in behind the last one taken, after the read version, need not be known.
            while len(expected) > len(got) and not self._was_there(self.model.jobs[expected[-1][1]]):
                expected.pop()
        if got != [key[1] for _, key in expected]:
            self.complain(
                f"{self.who()}: accept of {entry.type!r} ({shown_terms(terms, due_by)}) took {got}, "
                f"expected {[key[1] for _, key in expected]}"
            )

    def _check_claim(
        self, entry: Entry, terms: AcceptTerms, due_by: float, taken: list[tuple[JobId, Any]], cut: bool
    ) -> None:
        """Whatever comes before the last job taken in exact order is a conflict if it comes first."""
        ranges = ranges_of(self._transaction)
        key = self.key(entry.type, taken[-1][0])
        job = self.model.jobs.get(key)
        if ranges is None or job is None or self._met_damage:
            return
        ready, scheduled = entry.keys.ready, entry.keys.scheduled
        wanted = [(entry.keys.paused, entry.keys.paused + b"\x00")]
        if len(taken) < terms.limit and not cut and not terms.open_end:
            most = b"" if terms.max_priority is None else terms.max_priority
            wanted.append((ready, ready + most + AFTER))
        elif job.state is READY and key in self.seqs and job.place <= self.own_places:
            wanted.append((ready, ready + job.priority + STAMP_CODE + self.seqs[key]))
        elif job.state is SCHEDULED:
            wanted.append((ready, ready + job.priority + AFTER))
        if due_by > entry.now and job.state is SCHEDULED and job.run_at is not None and job.place <= self.own_places:
            wanted.append((scheduled, scheduled + pack_seconds(job.run_at)))
        for begin, end in wanted:
            if not depends_on(ranges, begin, end):
                self.complain(
                    f"{self.who()}: accept of {entry.type!r} ({shown_terms(terms, due_by)}) took "
                    f"{[id for id, _ in taken]}, whatever others may have added or stopped meanwhile"
                )

    def _check_spread(
        self, entry: Entry, terms: AcceptTerms, due_by: float, taken: list[tuple[JobId, Any]], cut: bool
    ) -> None:
        """Every job taken must be among the first `spread` that were left when it was chosen."""
        due = self.model.due(entry.type, terms.max_priority, due_by, entry.now)
        # What became pending after the read version was not seen; what was seen but is gone by now, is not known.
        seen = [key for _, key in due if self._was_there(self.model.jobs[key])]
        wanted = min(terms.limit, len(seen))
        if self._met_damage:
            wanted = min(wanted, len(taken))
        if len(taken) > terms.limit or (len(taken) < wanted and not (cut and taken)):
            self.complain(
                f"{self.who()}: accept of {entry.type!r} ({shown_terms(terms, due_by)}) took {len(taken)} jobs, "
                f"expected {wanted}"
            )
        for id, _ in taken:
            key = (entry.type, id)
            if key not in islice(seen, terms.spread):
                job = self.model.jobs.get(key)
                self.complain(
                    f"{self.who()}: accept of {entry.type!r} ({shown_terms(terms, due_by)}) took {id!r}, which is "
                    f"{shown(job)}; the first were {[key[1] for key in seen[: terms.spread]]}"
                )
            if key in seen:
                seen.remove(key)

    def _take(self, entry: Entry, key: Key, job: ModelJob, due_by: float, record: Any, terms: AcceptTerms) -> None:
        """Give an accepted job its lock."""
        self.cells["accept", "pending"] += 1
        if job.run_at is not None and job.run_at > max(due_by, entry.now):
            self.complain(f"{self.who()}: accept took {named(*key)} before its time")
        lock = record.lock if record.__class__ is Record else None
        if lock is None or len(lock) != LOCK_BYTES or not any(lock):
            self.complain(f"{self.who()}: accept gave {named(*key)} no lock, but {lock!r}")
            lock = lock or b""
        elif lock in self._locks:
            self.complain(f"{self.who()}: accept gave {named(*key)} a lock that was given before")
        self._locks[lock] = "held"
        accepted = self.model.accept(key, lock, self._time(), entry.now, terms.worker, terms.max_history)
        self._check(entry, key, accepted, record)

    def _put_back(self, entry: Entry) -> None:
        """An accept has met too many jobs that a clock ahead of its own has made ready."""
        terms: AcceptTerms = entry.arguments[0]
        moved = self._found(entry) or []
        if len(moved) > terms.make_ready:
            self.complain(
                f"{self.who()}: accept of {entry.type!r} put {len(moved)} jobs back, {terms.make_ready} at most"
            )
        latest = entry.now if terms.due_by is None else max(terms.due_by, entry.now)
        for id, record in moved:
            key = self.key(entry.type, id)
            job = self.model.jobs.get(key)
            self.cells["put back", column(job)] += 1
            if job is None or job.state is not READY or job.run_at is None or job.run_at <= latest:
                self.complain(f"{self.who()}: accept put {named(*key)} back, which is {shown(job)}, at {latest}")
                continue
            self._check(entry, key, self.model.put_back(key), record)

    # Lost jobs

    def _lost(self, entry: Entry) -> None:
        until, limit = entry.arguments
        lost = self._found(entry)
        if not lost:
            return
        if len(lost) > limit:
            self.complain(f"{self.who()}: {len(lost)} jobs of {entry.type!r} were taken for lost, {limit} at most")
        now = self._time()
        timeout = self.model.timeouts.get(entry.type)
        for id, record in lost:
            key = self.key(entry.type, id)
            job = self.model.jobs.get(key)
            if job is None or job.state is not RUNNING or job.lock is None or job.active_at is None:
                self.complain(f"{self.who()}: {named(*key)} was taken for lost, but is {shown(job)}")
                continue
            self.cells["lost", column(job)] += 1
            silent = now - job.active_at
            self.silences.append(Silence(now, *key, silent, timeout))
            if timeout is None or silent < timeout - TOLERANCE:
                self.complain(
                    f"{self.who()}: {named(*key)} was taken for lost after {silent:.6f} s of silence; "
                    f"its type's timeout is {timeout}"
                )
            if self.seqs.get(key, b"")[: len(until)] > until:
                self.complain(f"{self.who()}: {named(*key)} was taken for lost, but was active after {until.hex()}")
            self._end_lock(entry, key, job.lock)
            self.taken_away[entry.type] = None
            self._know_retention(entry.type, record)
            self._check(entry, key, self.model.lose(key, entry.now), record)

    def _bury(self, entry: Entry) -> None:
        """A job was taken from a process that has died."""
        key, job = self._job(entry)
        (dead,) = entry.arguments
        if job is None or job.lock is None or not any(job.lock.startswith(each) for each in dead):
            self.complain(f"{self.who()}: {named(*key)} was taken from the dead {dead}, but is {shown(job)}")
            return
        for instance in dead:
            if not self._is_dead(instance):
                self.complain(f"{self.who()}: {instance.hex()} was taken for dead, but lives")
        self.cells["bury", column(job)] += 1
        self._end_lock(entry, key, job.lock)
        self.taken_away[entry.type] = None
        self._know_retention(entry.type, entry.result)
        self._check(entry, key, self.model.lose(key, entry.now), entry.result)

    # Expired jobs

    def _expire(self, entry: Entry) -> None:
        until, limit = entry.arguments
        gone = self._found(entry) or []
        if len(gone) > limit:
            self.complain(f"{self.who()}: {len(gone)} jobs of {entry.type!r} have expired, {limit} at most")
        for id, _ in gone:
            key = self.key(entry.type, id)
            job = self.model.jobs.get(key)
            self.cells["expire", column(job)] += 1
            expires = None if job is None else job.notes.expires
            if expires is None or expires > min(until, entry.now):
                self.complain(f"{self.who()}: {named(*key)} was removed as expired, but is {shown(job)}")
            if job is not None:
                self.model.remove(key, False)
