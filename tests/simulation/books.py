"""Books: what programs have read and written in one store, and whether a store may have done so.

Each call that writes leaves a row with its transaction's versionstamp and the number of the run that has committed. So
what a store holds in the end tells which of all runs have taken effect, and in which order; a plain dictionary, on
which they are played in that order, tells what each must have read, and what must be left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from jobs_service.store.base import STAMP_BYTES, Transaction, Watch
from tests.simulation.programs import LETTERS, GaveUp, Program, edges, perform, play, relied_on

OK: Final = "ok"
FAILED: Final = "failed"
"""The outcome of a call whose function has raised: nothing is written."""
UNKNOWN: Final = "unknown"


@dataclass(eq=False)
class Watching:
    """A watch, and what came of it.

    Attributes:
        key, watch: what is watched.
        owner: the process whose watch it is.
        baseline: the value that its transaction saw or left.
        place: of its key's value among all that it has had, when the call began that has made it.
        made: when that was answered, on the loop's clock, seconds.
    """

    key: bytes
    watch: Watch
    owner: Any
    baseline: bytes | None
    place: int
    made: float


@dataclass(eq=False)
class Run:
    """One run of a call's function: its watches, and what its steps have returned; None until it has ended."""

    results: list[Any] | None = None
    watches: list[Watch] = field(default_factory=list)


@dataclass(eq=False)
class Line:
    """One call.

    Attributes:
        number: unique in the book.
        program: what it does.
        owner: the process that calls.
        began: its place among the moments at which calls begin and are answered.
        at: when that was, on the loop's clock, seconds.
        places: of the values that the keys had then which it watches, among all that they have had.
        ended: the place of its answer among those moments; None before, and when it is not known what has happened.
        runs: of its function.
        outcome: OK, FAILED, or UNKNOWN while it is not known whether it has happened.
        answer: the number of the run whose result was answered.
        told: the numbers of the runs of which the store has told those who were not there any more.
        gone: whether the caller has gone before the answer.
        is_told: whether the store is to tell then what has come of it.
        is_committed: whether it was seen to be committed.
    """

    number: int
    program: Program
    owner: Any
    began: int
    at: float
    places: dict[bytes, int]
    ended: int | None = None
    runs: list[Run] = field(default_factory=list)
    outcome: str = UNKNOWN
    answer: int | None = None
    told: list[int] = field(default_factory=list)
    gone: bool = False
    is_told: bool = False
    is_committed: bool = False

    def __str__(self) -> str:
        return f"program {self.number} of {self.owner} ({self.outcome})"


_RARELY: Final = 2
"""Watches that may fire for nothing in a run."""


class Book:
    """The programs of one store.

    Args:
        prefix: of its keys.
        time: the loop's clock.
        complain: called with what is wrong.

    Attributes:
        keys: the prefix of those that programs read and write.
        lines: all calls.
        watchings: all watches that are alive.
        values: of each key, since when it has had which value, as far as it is known.
        value_of: returns what a key has now; None where every change is noted as it happens.
        is_strict: whether a watch never fires without a change.
    """

    value_of: Callable[[bytes], bytes | None] | None = None
    is_strict = True

    def __init__(self, prefix: bytes, time: Callable[[], float], complain: Callable[[str], object]) -> None:
        self.keys, self._rows, self._stamps = prefix + b"keys/", prefix + b"rows/", prefix + b"stamps/"
        self.prefix = prefix
        self.lines: list[Line] = []
        self.watchings: list[Watching] = []
        self.values: dict[bytes, list[tuple[float, bytes | None]]] = {
            self.keys + bytes([letter]): [(0.0, None)] for letter in LETTERS
        }
        self._time = time
        self._complain = complain
        self._for_nothing = 0
        self._moments = 0

    async def prepare(self, tx: Transaction) -> None:
        """Write what no program does."""
        for key in edges(self.keys):
            tx[key] = b""

    # What happens

    def begin(self, program: Program, owner: object) -> Line:
        """Note that a call begins."""
        places = {key: len(self.values[key]) - 1 for key in program.watched}
        line = Line(len(self.lines), program, owner, self._moment(), self._time(), places)
        self.lines.append(line)
        return line

    async def run(self, line: Line, tx: Transaction) -> int:
        """Run the function of a call; return the number of this run."""
        number = len(line.runs)
        line.runs.append(run := Run())
        results, run.watches = await perform(tx, line.program, self._stamps + b"%d/" % line.number)
        if line.program.writes:
            tx.stamp_value(self._rows + b"%d" % line.number, b"", b"%d" % number)
        run.results = results
        if line.program.fails:
            raise GaveUp
        return number

    def end(self, line: Line, outcome: str, answer: int | None = None) -> None:
        """Note the answer of a call."""
        line.outcome, line.answer = outcome, answer
        if outcome != UNKNOWN:
            line.ended = self._moment()
        if outcome == OK:
            self._make(line)

    def changed(self, key: bytes, value: bytes | None) -> bool:
        """Note a key's value; return whether it was another one."""
        values = self.values.get(key)
        if values is None or values[-1][1] == value:
            return False
        values.append((self._time(), value))
        return True

    def committed(self, written: Mapping[bytes, bytes | None]) -> None:
        """Note a commit: each call has one at most."""
        for key in written:
            if key.startswith(self._rows):
                line = self._line(key)
                if line.is_committed:
                    self._complain(f"twice: {line} is committed again")
                line.is_committed = True

    def _moment(self) -> int:
        self._moments += 1
        return self._moments

    def _make(self, line: Line) -> None:
        """Keep an eye on the watches of a call that was answered."""
        assert line.answer is not None
        run = line.runs[line.answer]
        assert run.results is not None
        count = len(run.watches)
        baselines = run.results[len(run.results) - count :]
        for watch, baseline in zip(run.watches, baselines, strict=True):
            watching = Watching(watch.key, watch, line.owner, baseline, line.places[watch.key], self._time())
            self.watchings.append(watching)
            watch.on_fire(partial(self._fired, watching))

    def _fired(self, watching: Watching) -> None:
        self.watchings.remove(watching)
        if self.value_of is not None:
            self.changed(watching.key, self.value_of(watching.key))
        if watching.watch.error is not None or not self.is_strict:
            return
        values = self.values[watching.key]
        if all(value == watching.baseline for _, value in values[watching.place :]):
            self._for_nothing += 1
        # A store may have one fire without a change, but does so rarely.
        if self._for_nothing > _RARELY:
            self._complain(f"watch: the one on {watching.key!r} of {watching.owner} has fired for nothing")

    # Watches

    def keep(self, watch: Watch, owner: object) -> None:
        """Keep an eye on a watch whose key has its baseline now."""
        place = len(self.values[watch.key]) - 1
        watching = Watching(watch.key, watch, owner, watch.baseline, place, self._time())
        self.watchings.append(watching)
        watch.on_fire(partial(self._fired, watching))

    def missed(self, watching: Watching, since: float) -> bool:
        """Whether a watch should have fired, because its key has had another value for so long."""
        changed, value = self.values[watching.key][-1]
        return value != watching.baseline and max(changed, watching.made) <= since

    def cancel(self, watching: Watching) -> None:
        """Nobody waits for a watch any more."""
        self.watchings.remove(watching)
        watching.watch.on_fire(lambda: None)
        watching.watch.cancel()

    def left_by(self, owner: object) -> Iterator[str]:
        """Yield the watches that have neither fired nor failed, although their store was closed by this process."""
        for each in self.watchings:
            if each.owner is owner:
                yield f"watch: the one on {each.key!r} of {owner} has not failed; its store is closed"
        for line in self.lines:
            if line.outcome == UNKNOWN or line.owner is not owner:
                continue
            for number, run in enumerate(line.runs):
                if number != line.answer and any(not watch.fired or watch.error is None for watch in run.watches):
                    yield f"watch: those of run {number} of {line}, which did not commit, are not lost"

    # The end

    def check(self, stored: Mapping[bytes, bytes], lived: Callable[[Any], bool]) -> Iterator[str]:
        """Yield what is wrong with what was read and written.

        Args:
            stored: keys and values in the end.
            lived: tells whether a process has ended without being killed.
        """
        rows = {key: value for key, value in stored.items() if key.startswith(self._rows)}
        committed = [(value[:STAMP_BYTES], self._line(key), int(value[STAMP_BYTES:])) for key, value in rows.items()]
        committed.sort(key=lambda each: each[0])
        yield from self._of_stamps([stamp for stamp, _, _ in committed])
        states: list[dict[bytes, bytes]] = [{}]
        written: dict[int, int] = {}
        for _, line, _ in committed:
            state = play(line.program, states[-1], self.keys)[1]
            written[line.number] = len(states)
            states.append(state)
        yield from self._of_answers({line.number: number for _, line, number in committed}, lived)
        yield from self._of_order([line for _, line, _ in committed])
        for stamp, line, number in committed:
            yield from self._of_reads(line, number, states, written)
            yield from self._of_stamped(line, stamp, stored)
        for line in self.lines:
            if not line.program.writes and line.outcome == OK and line.answer is not None:
                yield from self._of_reads(line, line.answer, states, written)
        left = {key: value for key, value in stored.items() if key in self.values}
        if left != states[-1]:
            yield f"programs: {left} is stored, and must be {states[-1]}"

    def _line(self, row: bytes) -> Line:
        return self.lines[int(row[len(self._rows) :])]

    def _of_stamps(self, stamps: list[bytes]) -> Iterator[str]:
        if len(set(stamps)) < len(stamps):
            yield f"programs: {len(stamps)} transactions have {len(set(stamps))} versionstamps"

    def _of_answers(self, committed: Mapping[int, int], lived: Callable[[Any], bool]) -> Iterator[str]:
        """What callers are told is what was committed."""
        for line in self.lines:
            number = committed.get(line.number)
            if line.outcome == OK and line.program.writes and number != line.answer:
                yield f"programs: {line} was answered by run {line.answer}; committed is run {number}"
            elif line.outcome == FAILED and number is not None:
                yield f"programs: {line} has raised, but its run {number} is committed"
            if line.told and (line.told != [number] or not line.gone):
                yield f"told: of runs {line.told} of {line}; committed is run {number}, and {line.gone=}"
            if number is not None and line.gone and line.is_told and not line.told and lived(line.owner):
                yield f"told: nobody was told that {line} is committed, although its caller has gone before"

    def _of_order(self, lines: list[Line]) -> Iterator[str]:
        """Who was answered before another one has asked comes first."""
        latest = 0
        for line in lines:
            if line.ended is not None and line.ended < latest:
                yield f"programs: {line} was answered before one began that was committed before it"
            latest = max(latest, line.began)

    def _of_reads(
        self, line: Line, number: int, states: list[dict[bytes, bytes]], written: Mapping[int, int]
    ) -> Iterator[str]:
        """A run has seen one state, none from before its call began, and what it relies on holds when it commits."""
        results = line.runs[number].results
        assert results is not None
        answered = [place for each, place in written.items() if self._is_before(self.lines[each], line)]
        first = max(answered, default=0)
        last = written[line.number] - 1 if line.program.writes else len(states) - 1
        if not any(play(line.program, states[place], self.keys)[0] == results for place in range(first, last + 1)):
            yield (
                f"programs: {line} with {line.program.steps} has read {results}, which was so in none of "
                f"{states[first : last + 1]}"
            )
        elif line.program.writes:
            now = relied_on(line.program, play(line.program, states[last], self.keys)[0])
            if now != relied_on(line.program, results):
                yield f"programs: {line} with {line.program.steps} relies on {results}; it commits upon {states[last]}"

    def _is_before(self, earlier: Line, line: Line) -> bool:
        return earlier.ended is not None and earlier.ended < line.began

    def _of_stamped(self, line: Line, stamp: bytes, stored: Mapping[bytes, bytes]) -> Iterator[str]:
        """What gets the transaction's versionstamp has that of its row."""
        head = self._stamps + b"%d/" % line.number
        wanted = {}
        for place, step in enumerate(line.program.steps):
            if step.name == "stamp":
                wanted[head + b"%d" % place + stamp + b"/"] = b"key"
            elif step.name == "read stamp":
                wanted[head + b"%d" % place] = b"value" + stamp + b"/"
        found = {key: value for key, value in stored.items() if key.startswith(head)}
        if found != wanted:
            yield f"programs: {line} has stamped {found}; it must be {wanted}"
