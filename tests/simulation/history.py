"""Whether the operations of a run were as if done one after the other: each commit's are done again on the plain model.

A transaction that has written takes its place at its commit, one that only reads at its read version. What a commit has
written must be what the model makes of its operations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from jobs_service.model import JobId, JobType
from jobs_service.model.type_state import Retention
from tests import reader
from tests.reader import Record, Undocumented
from tests.simulation.complaints import differences, named, observed, shown
from tests.simulation.damage import is_damage
from tests.simulation.job_states import State, state_of
from tests.simulation.machine import Machine
from tests.simulation.model import Model
from tests.simulation.model_job import OBSERVED, Key, ModelJob
from tests.simulation.operations import Operations
from tests.simulation.replay import Ended, version_in
from tests.simulation.rows import last_key, names_in, rows_of, section, value_in
from tests.simulation.signals import unnoted, untold
from tests.simulation.written import wrong_order, wrong_rules

Written: TypeAlias = Mapping[bytes, bytes | None]
"""New values of keys, None for those that were removed."""


class History:
    """An observer of a cluster that does every operation again on the model, and complains about what differs.

    Args:
        time: the loop's clock, seconds.
        machine: on which embedded stores are; None where the cluster is simulated.

    Attributes:
        model: all jobs and types as they must be now.
        complaints: what was wrong, a line each; the first of many only.
        cells: how often each cell of the operations table has occurred: (operation, what the job was before).
        silences, heard: the jobs that were taken for lost, and those of whose workers something was heard.
        is_counted: whether all jobs are counted: none are damaged.
        tallies: what was counted.
    """

    def __init__(self, time: Callable[[], float], machine: Machine | None = None) -> None:
        self._operations = Operations(time, _nobody if machine is None else machine.is_dead)
        self._version_of = version_in if machine is None else machine.version_of
        self.model: Model = self._operations.model
        self.complaints: list[str] = self._operations.complaints
        self.cells: Counter[tuple[str, str]] = self._operations.cells
        self.silences, self.heard = self._operations.silences, self._operations.heard
        self.is_counted = False
        self.tallies = self._operations.tallies
        self._time = time
        self._data_section = section("DATA")
        self._timeout_section = section("ACTIVITY_TIMEOUT")
        self._followed_section = section("FOLLOWED")
        self._last_section = section("LAST")
        self._rule_sections = (section("PAUSED"), section("RETENTION"))
        self._states: dict[Key, list[tuple[int, float, Record | None, bool]]] = {}
        # The types that are followed, by their rows, and the jobs of which there is a last record, by theirs.
        self._followed: dict[bytes, bytes] = {}
        self._last: dict[bytes, float] = {}
        # As many of them as somebody has asked for, as they are given.
        self._shown: dict[Key, list[State]] = {}
        # Of every commit: its version, how long the model's log was then, and the number of the last move.
        self._versions: list[int] = [-1]
        self._positions: list[int] = [0]
        self._places: list[int] = [0]

    @property
    def operations(self) -> int:
        """How many operations were checked."""
        return self._operations.count

    # What the cluster calls, and what checks ask

    def ended(self, transaction: Ended) -> None:
        """Look at a transaction that has ended well; called in commit order, at the moment of the commit."""
        if transaction.commit_version is not None:
            self._look_at_commit(transaction, transaction.commit_version)
        elif transaction.journal:
            self._look_at_reads(transaction)

    def know_of_damage(self) -> None:
        """Some records of the run cannot be read: then counts are not what the model has."""
        self._operations.is_damaged = True

    def known(self) -> list[Key]:
        """Return every job that there was."""
        return list(self._states)

    @property
    def in_order(self) -> set[JobType]:
        """The types whose jobs are accepted in exact order, whoever collides; to be added to."""
        return self._operations.in_order

    @property
    def timeouts(self) -> dict[JobType, list[tuple[int, float | None]]]:
        """Of every type, what its timeout was from which commit on; None when it was cleared."""
        return self._operations.timeouts

    @property
    def pauses(self) -> dict[JobType, list[tuple[int, bool]]]:
        """Of every type, whether it was paused from which commit on."""
        return self._operations.pauses

    @property
    def retentions(self) -> dict[JobType, list[tuple[int, Retention]]]:
        """Of every type, how long finished jobs were kept from which commit on."""
        return self._operations.retentions

    def states(self, type: JobType, id: JobId) -> list[State]:
        """Return a job's true history: what it was from each commit on that has written it."""
        key = (type, id)
        stored = self._states.get(key, ())
        shown = self._shown.setdefault(key, [])
        shown += [state_of(*each) for each in stored[len(shown) :]]
        return list(shown)

    def newest(self, type: JobType, id: JobId) -> Record | None:
        """Return the record that was written of a job last; None where there is none."""
        past = self._states.get((type, id))
        return past[-1][2] if past else None

    def finish(self, stored: Mapping[bytes, bytes]) -> None:
        """Compare the whole model with what is stored at the end.

        Args:
            stored: keys and values; those that are no job's record or type's timeout are ignored.
        """
        records = {key: raw for key, raw in stored.items() if key.startswith(self._data_section) and not is_damage(key)}
        for key, job in self.model.jobs.items():
            raw = records.pop(self._operations.keys[key], None)
            record = None if raw is None else self._record(key, raw)
            differs = "nothing is stored" if raw is None else "" if record is None else differences(job, record)
            if differs:
                self._operations.complain(f"at the end: {named(*key)} is {shown(job)}: {differs}")
        for data_key in records:
            self._operations.complain(f"at the end: {named(*names_in(data_key))} is stored, but must be gone")
        section = self._timeout_section
        timeouts = {names_in(key)[0]: value_in(key, raw) for key, raw in stored.items() if key.startswith(section)}
        if timeouts != self.model.timeouts:
            self._operations.complain(f"at the end: the types' timeouts are {timeouts}, not {self.model.timeouts}")

    # Transactions

    def _look_at_commit(self, transaction: Ended, version: int) -> None:
        model = self.model
        position = len(model.log)
        self._operations.do(transaction, self._places[self._mark(transaction.version)])
        self._compare_timeouts(transaction.written)
        self._compare_rules(transaction.written)
        followed = self._know_followed(transaction.written)
        self._compare_jobs(position, version, transaction.written, followed)
        self._compare_last(transaction.written)
        if len(model.log) != position:
            self._versions.append(version)
            self._positions.append(len(model.log))
            self._places.append(model.places)
        operations = self._operations
        for type, seconds in operations.own_types.items():
            operations.timeouts.setdefault(type, []).append((version, seconds))
        for type, paused in operations.own_pauses.items():
            operations.pauses.setdefault(type, []).append((version, paused))
        for type, retention in operations.own_retentions.items():
            operations.retentions.setdefault(type, []).append((version, retention))

    def _look_at_reads(self, transaction: Ended) -> None:
        """Do the operations on the past that the transaction has seen; they must change nothing."""
        model = self.model
        places = model.places
        undone = model.undo(self._positions[self._mark(transaction.version)])
        position = len(model.log)
        self._operations.do(transaction, self._places[self._mark(transaction.version)])
        if len(model.log) != position:
            changed = {key for key, _ in model.log[position:]}
            names = ", ".join(sorted(named(*key) for key in changed))
            self._complain(f"it wrote nothing, but must have changed {names}")
            model.undo(position)
        for what, types in (
            ("timeout", self._operations.own_types),
            ("pause", self._operations.own_pauses),
            ("retention", self._operations.own_retentions),
        ):
            for type in types:
                self._complain(f"it wrote nothing, but must have changed the {what} of {type!r}")
        for key, job in reversed(undone):
            model.restore(key, job)
        model.places = places

    # What was written

    def _compare_timeouts(self, written: Written) -> None:
        section = self._timeout_section
        for type, seconds in self._operations.own_types.items():
            if seconds != self.model.timeouts.get(type) and rows_of(type).timeout not in written:
                self._complain(f"the timeout of {type!r} must be {seconds}, but was not written")
            if seconds is None:
                self.model.timeouts.pop(type, None)
            else:
                self.model.timeouts[type] = seconds
        for data_key, raw in written.items():
            if not data_key.startswith(section):
                continue
            (type,) = names_in(data_key)
            stored = None if raw is None else value_in(data_key, raw)
            if stored != self.model.timeouts.get(type):
                wanted = self.model.timeouts.get(type)
                self._complain(f"the timeout of {type!r} was written as {stored}, expected {wanted}")

    def _compare_rules(self, written: Written) -> None:
        """Compare which types were paused, and how long their jobs are kept, with what was written."""
        for complaint in wrong_rules(self._operations, written, self._rule_sections):
            self._complain(complaint)

    def _compare_jobs(self, position: int, version: int, written: Written, followed: Mapping[bytes, bytes]) -> None:
        """Compare what was written with what the model's log says since a position."""
        model = self.model
        touched: dict[Key, ModelJob | None] = {}
        for key, before in model.log[position:]:
            touched.setdefault(key, before)
        moved: list[tuple[int, bytes, Key]] = []
        for key, before in touched.items():
            job = model.jobs.get(key)
            data_key = self._operations.keys[key]
            if data_key not in written:
                if job != before:
                    self._complain(f"{named(*key)} must be {shown(job)}, but was not written")
                    model.restore(key, before)
                elif job is None and last_key(*key) in written and (left := model.left.get(key)) is not None:
                    # It was added and has left in one transaction: only those who follow its type hear of it.
                    self._compare_left(key, left, version, written)
                    self._keep(key, version, None, True)
                continue
            record = self._record(key, written[data_key])
            self._compare(key, job, record, version)
            left = None if record is not None else model.left.get(key)
            if left is not None:
                self._compare_left(key, left, version, written)
            if job is not None and record is not None and job.place > self._operations.own_places:
                moved.append((job.place, record.seq, key))
            self._keep(key, version, record, left is not None)
        for complaint in (
            *wrong_order(moved),
            *untold(self._operations, touched, written, lambda stamp: self._version_of(stamp) == version),
            *unnoted(self._operations, touched, written, followed),
            *self.tallies.wrong(touched, written, told=self.is_counted),
        ):
            self._complain(complaint)
        section = self._data_section
        for data_key in written:
            if not data_key.startswith(section) or is_damage(data_key):
                continue
            if self._operations.jobs.get(data_key) not in touched:
                self._was_not_to_be_written(data_key, version, written[data_key])

    def _compare_left(self, key: Key, job: ModelJob, version: int, written: Written) -> None:
        """Compare the last record of a job that has left with its end: it is there if anybody follows its type."""
        raw = written.get(last_key(*key))
        if rows_of(key[0]).followed not in self._followed:
            if raw is not None:
                self._complain(f"{named(*key)} has left, and is kept for followers that are not there")
            return
        record = self._record(key, raw)
        if record is None:
            self._complain(f"{named(*key)} has left, but its followers cannot be told how it has ended")
            return
        if job[:OBSERVED] != observed(record)[:OBSERVED]:
            self._complain(f"{named(*key)} has left as {shown(job)}: {differences(job, record)}")
        if self._version_of(record.seq) != version:
            self._complain(f"{named(*key)} has left, but its seq is {record.seq.hex()}")
        self._keep(key, version, record)

    def _know_followed(self, written: Written) -> Mapping[bytes, bytes]:
        """Take note of the types that are followed now; return the rows of those that were before as well."""
        if changed := {key: raw for key, raw in written.items() if key.startswith(self._followed_section)}:
            before = {key: raw for key, raw in self._followed.items() if key not in changed}
            self._followed = before | {key: raw for key, raw in changed.items() if raw is not None}
            return before
        return self._followed

    def _compare_last(self, written: Written) -> None:
        """Last records are those of jobs that leave just now; none is of a job that was removed since."""
        for key, raw in written.items():
            if not key.startswith(self._last_section):
                continue
            if raw is None:
                self._last.pop(key, None)
                continue
            self._last[key] = self._time()
            if is_damage(key) or names_in(key) in self.model.left:
                continue
            self._complain(f"{named(*names_in(key))} has not left, but was written as one that has")
        if not self._last:
            return
        for data_key, raw in written.items():
            if raw is None and data_key.startswith(self._data_section):
                names = names_in(data_key)
                if self.model.left.get(names) is None and last_key(*names) in self._last:
                    self._complain(f"{named(*names)} was removed, but an earlier job of that id is still there as left")

    def unread(self) -> Iterator[str]:
        """Yield the last records that nobody has removed yet."""
        for key, since in self._last.items():
            yield f"the last record of {names_in(key)}, written at {since:.3f}"

    def _record(self, key: Key, raw: bytes | None) -> Record | None:
        try:
            return None if raw is None else reader.record(raw)
        except Undocumented as error:
            self._complain(f"the record of {named(*key)}: {error}")
            return None

    def _compare(self, key: Key, job: ModelJob | None, record: Record | None, version: int) -> None:
        """Compare a job's stored record with what it must be."""
        if record is None or job is None:
            if record is not None or job is not None:
                self._complain(f"{named(*key)} must be {shown(job)}, but is {shown(record)}")
                self._adopt(key, record)
            return
        if job[:OBSERVED] != observed(record)[:OBSERVED]:
            self._complain(f"{named(*key)} must be {shown(job)}: {differences(job, record)}")
            self._adopt(key, record)
            return
        seq = record.seq
        if job.place > self._operations.own_places:
            if self._version_of(seq) != version:
                self._complain(f"{named(*key)} has moved, but its seq is {seq.hex()}")
            return
        if self._operations.seqs.get(key, seq) != seq:
            self._complain(f"{named(*key)} has not moved, but its seq has become {seq.hex()}")

    def _was_not_to_be_written(self, data_key: bytes, version: int, raw: bytes | None) -> None:
        key = self._operations.key(*names_in(data_key))
        record = self._record(key, raw)
        job = self.model.jobs.get(key)
        if record is None and job is None:
            return
        self._complain(
            f"{named(*key)} was written as {shown(record)}, but no operation has changed it from {shown(job)}"
        )
        self._adopt(key, record)
        self._keep(key, version, record)

    def _adopt(self, key: Key, record: Record | None) -> None:
        """Go on from what is stored: one defect is one complaint."""
        model = self.model
        if record is None or (record.state == "scheduled" and record.run_at is None):
            model.restore(key, None)
            return
        model.places += 1
        active_at = self._time() if record.lock is not None else None
        model.put(key, observed(record)._replace(place=model.places, active_at=active_at))

    # Parts

    def _mark(self, version: int) -> int:
        """Return the number of the last commit up to a version."""
        return bisect_right(self._versions, version) - 1

    def _keep(self, key: Key, version: int, record: Record | None, left: bool = False) -> None:
        """Note what a job is from this commit on."""
        self._states.setdefault(key, []).append((version, self._time(), record, left))
        if record is None:
            self._operations.seqs.pop(key, None)
        else:
            self._operations.seqs[key] = record.seq

    def _complain(self, complaint: str) -> None:
        self._operations.complain(f"{self._operations.who()}: {complaint}")


def _nobody(instance: bytes) -> bool:
    """Where stores have no instances none is dead."""
    return False
