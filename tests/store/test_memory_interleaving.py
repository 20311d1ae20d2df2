"""The memory store under interleavings that hypothesis chooses: serializable, and no conflict without a reason."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service.errors import TransactionConflict
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.memory import MemoryStore, MemoryTransaction
from tests.contract.model import BLIND_WRITES, Model, Operation, perform
from tests.contract.programs import BOUND, KEY, OWN, PROGRAMS, WRITES, Run, replay, run_alone
from tests.contract.support import END, contents, write

START = {b"a": b"\x01", b"c": b"\x02"}
Range = tuple[bytes, bytes]
State = dict[bytes, bytes]

PLAIN_READS = st.tuples(st.just("get"), KEY) | st.tuples(st.just("get_range"), BOUND, BOUND, st.just(0), st.booleans())
PLAIN_PROGRAMS = st.lists(PLAIN_READS | WRITES, min_size=1, max_size=5)
"""Programs of which it is plain what they read: the ranges of limited reads and selectors end where data ends."""


def overlap(some: list[Range], others: list[Range]) -> bool:
    """Return whether two lists of ranges have a key in common."""
    return any(max(a, c) < min(b, d) for a, b in some for c, d in others)


@dataclass
class Live:
    """A program whose transaction is open.

    Attributes:
        tr: its transaction.
        run: how far it is.
        began: how many transactions had committed when it began.
        read: the ranges that it has read; of a limited read or one with selectors, nothing of use.
        written: the ranges that it has written.
    """

    tr: MemoryTransaction
    run: Run
    began: int
    read: list[Range] = field(default_factory=list)
    written: list[Range] = field(default_factory=list)

    async def step(self) -> bool:
        """Do the next operation; return whether there was one."""
        operation = self.run.next()
        if operation is None:
            return False
        self.run.note(await perform(self.tr, operation))
        self._note_ranges(operation)
        return True

    def _note_ranges(self, operation: Operation) -> None:
        name, *arguments = operation
        if name == "get":
            if not self._knows(arguments[0]):
                self.read.append((arguments[0], arguments[0] + b"\x00"))
        elif name == "get_range":
            self.read.append((arguments[0], arguments[1]))
        elif name == "clear_range":
            self.written.append((arguments[0], arguments[1]))
        elif name != "get_many":
            self.written.append((arguments[0], arguments[0] + b"\x00"))

    def _knows(self, key: bytes) -> bool:
        """Return whether the transaction has given the key a value of its own, whatever the store holds."""
        return any(
            (name in ("set", "clear") and arguments[0] == key)
            or (name == "clear_range" and arguments[0] <= key < arguments[1])
            for name, *arguments in self.run.program[: self.run.done]
        )


class Interleaving:
    """Runs programs, one operation of one of them at a time, and checks each at its commit."""

    def __init__(self, store: MemoryStore, programs: list[list[Operation]], *, exact: bool) -> None:
        self.states: list[State] = [START]
        self._store = store
        self._waiting = list(enumerate(programs))
        self._live: list[Live] = []
        self._writes: list[list[Range]] = []
        self._exact = exact

    async def step(self, choice: int) -> bool:
        """Let one program begin, go on or commit; return whether there is more to do."""
        if not self._waiting and not self._live:
            return False
        place = choice % (len(self._live) + bool(self._waiting))
        if place == len(self._live):
            number, program = self._waiting.pop(0)
            self._live.append(Live(self._store.begin(), Run(number, program), len(self._writes)))
        elif not await self._live[place].step():
            self._commit(self._live.pop(place))
        return True

    def _commit(self, live: Live) -> None:
        if not live.written:
            live.tr.commit()
            run_alone(self.states[live.began], live.run)
            return
        own = OWN + b"%d" % live.run.number
        live.tr.set(own, live.run.digest())
        meanwhile = [written for commit in self._writes[live.began :] for written in commit]
        if not self._exact:
            try:
                live.tr.commit()
            except TransactionConflict:
                return
        elif overlap(live.read, meanwhile):
            with pytest.raises(TransactionConflict):
                live.tr.commit()
            return
        else:
            live.tr.commit()
        self.states.append(replay(self.states[-1], live.run))
        self._writes.append([*live.written, (own, own + b"\x00")])


async def interleave(programs: list[list[Operation]], choices: list[int], *, exact: bool) -> None:
    """Run programs interleaved as the choices say, on a store of their own."""
    store = MemoryStore(settings=Settings(), sources=Sources(0))
    await store.open()
    await write(store, START)
    interleaving = Interleaving(store, programs, exact=exact)
    for choice in choices:
        await interleaving.step(choice)
    while await interleaving.step(0):
        pass
    assert await contents(store) == interleaving.states[-1]
    assert store.versions.kept == 0
    await store.close()


CHOICES = st.lists(st.integers(0, 4), max_size=50)


@given(programs=st.lists(PROGRAMS, min_size=2, max_size=5), choices=CHOICES)
@settings(max_examples=150)
async def test_committed_transactions_are_as_good_as_one_after_the_other(
    programs: list[list[Operation]], choices: list[int]
) -> None:
    await interleave(programs, choices, exact=False)


@given(programs=st.lists(PLAIN_PROGRAMS, min_size=2, max_size=5), choices=CHOICES)
@settings(max_examples=150)
async def test_a_commit_fails_exactly_if_something_read_was_written_meanwhile(
    programs: list[list[Operation]], choices: list[int]
) -> None:
    await interleave(programs, choices, exact=True)


EVENTS = st.lists(
    st.just(("begin",)) | st.tuples(st.sampled_from(["look", "end"]), st.integers(0, 9)) | BLIND_WRITES, max_size=40
)


@given(events=EVENTS)
@settings(max_examples=150)
async def test_every_open_transaction_sees_the_state_of_its_beginning(events: list[Operation]) -> None:
    store = MemoryStore(settings=Settings(), sources=Sources(0))
    await store.open()
    state: State = {}
    readers: list[tuple[MemoryTransaction, State]] = []
    for event in events:
        if event[0] == "begin":
            readers.append((store.begin(), state))
        elif event[0] in ("look", "end"):
            if readers:
                tr, expected = readers[event[1] % len(readers)]
                await check(tr, expected, set(state))
                if event[0] == "end":
                    readers.remove((tr, expected))
                    tr.end()
        else:
            model = Model(state)
            model.perform(event)
            writer = store.begin()
            await perform(writer, event)
            writer.commit()
            state = model.view
    for tr, expected in readers:
        await check(tr, expected, set(state))
        tr.end()
    assert await contents(store) == state
    assert store.versions.kept == 0
    await store.close()


async def check(tr: MemoryTransaction, expected: State, others: set[bytes]) -> None:
    """Check all ways of reading a state."""
    pairs = sorted(expected.items())
    assert await tr.get_range(b"", END) == pairs
    assert await tr.get_range(b"", END, reverse=True) == pairs[::-1]
    assert await tr.get_range(b"a", b"b\x00", limit=2) == [pair for pair in pairs if b"a" <= pair[0] <= b"b"][:2]
    for key in others | expected.keys():
        assert await tr.get(key) == expected.get(key)
