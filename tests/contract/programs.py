"""Generated read-modify-write programs, and the check that what they saw fits one order, one after the other.

What a program writes depends on all that it has read, so a wrong read shows in what the others read as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from hypothesis import strategies as st

from jobs_service.store import KeySelector, Transaction
from tests.contract.model import Model, Operation, perform
from tests.contract.support import END

KEYS = [b"a", b"b", b"c", b"d"]
OWN = b"own/"
"""Each program writes a key of its own below this, so that it gets a versionstamp."""

KEY = st.sampled_from(KEYS)
BOUND = st.sampled_from([b"", *KEYS, OWN, END])
_SELECTOR = BOUND | st.builds(KeySelector, KEY, st.booleans(), st.integers(-1, 2))
READS = (
    st.tuples(st.just("get"), KEY)
    | st.tuples(st.just("get_many"), st.lists(KEY, max_size=3))
    | st.tuples(st.just("get_range"), _SELECTOR, _SELECTOR, st.integers(0, 2), st.booleans())
)
WRITES = (
    st.tuples(st.just("set"), KEY)
    | st.tuples(st.just("clear"), KEY)
    | st.tuples(st.just("clear_range"), BOUND.filter(lambda key: key <= OWN), BOUND.filter(lambda key: key <= OWN))
    | st.tuples(st.just("add"), KEY)
)
PROGRAMS = st.lists(READS | WRITES, min_size=1, max_size=6)


@dataclass
class Run:
    """One run of a program: its next step may be done at any time.

    Attributes:
        number: which program it is.
        program: its operations; those that write say where, and the value comes from what was read.
        seen: what its reads gave.
    """

    number: int
    program: list[Operation]
    seen: list[Any] = field(default_factory=list)
    done: int = 0

    def next(self) -> Operation | None:
        """Return the next operation, complete with its value; None after the last."""
        if self.done == len(self.program):
            return None
        name, *arguments = self.program[self.done]
        if name in ("set", "add"):
            arguments.append(self.digest())
        return (name, *arguments)

    def note(self, result: Any) -> None:
        """Note what the next operation gave."""
        self.done += 1
        self.seen.append(result)

    def digest(self) -> bytes:
        """Return eight bytes that depend on all that was seen."""
        return blake2b(repr((self.number, self.seen)).encode(), digest_size=8).digest()

    async def to_its_end(self, tr: Transaction) -> None:
        """Run the whole program in a transaction."""
        while (operation := self.next()) is not None:
            self.note(await perform(tr, operation))
        tr.set(OWN + b"%d" % self.number, self.digest())


def run_alone(state: dict[bytes, bytes], run: Run) -> Model:
    """Run a program anew, alone on a state; check that it sees what it saw, and return what it makes of the state."""
    model = Model(state)
    alone = Run(run.number, run.program)
    while (operation := alone.next()) is not None:
        alone.note(model.perform(operation))
    assert alone.seen == run.seen, f"program {run.number} saw what no order of commits explains"
    return model


def replay(state: dict[bytes, bytes], run: Run) -> dict[bytes, bytes]:
    """Return the state that a program, run alone on this state, leaves; it must see what it saw."""
    model = run_alone(state, run)
    model.set(OWN + b"%d" % run.number, run.digest())
    return model.view
