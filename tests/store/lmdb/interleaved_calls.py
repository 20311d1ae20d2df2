"""What was called and committed in an interleaving, and what must hold of it whatever the order."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobs_service.store import Watch
from tests.contract.programs import Run, replay, run_alone

State = dict[bytes, bytes]


@dataclass(eq=False)
class Call:
    """One call of `transact` or `read`.

    Attributes:
        called: the step in which it was made.
        known: the versionstamp of the newest commit that somebody had been told of by then.
        key: what it watches, None for nothing.
        answered: the step in which its answer came, or was found to have taken effect unheard; -1 before.
        run: what its function did in the run that took effect.
        stamp: its versionstamp, None if it wrote nothing.
        watch, value: the watch that it has made, and what it saw or left of the key.
        fired: the step in which the watch was found to have fired.
    """

    called: int
    known: bytes
    key: bytes | None
    answered: int = -1
    run: Run | None = None
    stamp: bytes | None = None
    watch: Watch | None = None
    value: bytes | None = None
    canceled: bool = False
    fired: int = -1

    @property
    def is_waiting(self) -> bool:
        """Whether it has made a watch that somebody waits for."""
        return self.watch is not None and not self.canceled


@dataclass
class Record:
    """All that was done.

    Attributes:
        calls: of the store, in their order.
        commits: versionstamps, and what was done in each, whoever did it.
    """

    calls: list[Call] = field(default_factory=list)
    commits: list[tuple[bytes, Run]] = field(default_factory=list)

    def check_order(self) -> None:
        """Check that each call saw what some commit has left, and not what was older than it knew."""
        stamps, states = self._states()
        for call in self.calls:
            if call.run is not None:
                self._seen(call, stamps, states)

    def check_watches(self) -> None:
        """Check, when nothing is under way, that each watch has fired that had to, and none that had not."""
        stamps, states = self._states()
        own = {call.stamp: call for call in self.calls if call.stamp is not None}
        for call in self.calls:
            if call.run is None or not call.is_waiting or call.watch is None or call.watch.error is not None:
                continue
            seen = self._seen(call, stamps, states)
            held = [state.get(call.key or b"") for state in states]
            if call.watch.fired:
                assert set(held[seen[0] :]) != {call.value}, "a watch has fired for nothing"
                continue
            assert held[-1] == call.value, "a watch of an old value sleeps on"
            # Another process may change a value and change it back unseen; this one hears of all that it writes.
            before = held[seen[-1]]
            for place in range(seen[-1] + 1, len(held)):
                if stamps[place][:8] not in map(_version, stamps[place + 1 :]):  # one commit is one change
                    if stamps[place] in own and own[stamps[place]].called > call.answered:
                        assert held[place] in (before, call.value), "a change did not fire a watch"
                    before = held[place]

    def check_contents(self, contents: State) -> None:
        """Check what is there after closing: the outcome of all that took effect, and nothing else."""
        _, states = self._states()
        assert contents == states[-1], "the store does not hold what was committed"

    def _states(self) -> tuple[list[bytes], list[State]]:
        """Return the versionstamps of all commits, and what the store held at the beginning and after each."""
        self.commits.sort(key=lambda commit: commit[0])
        stamps = [b"", *(stamp for stamp, _ in self.commits)]
        assert len(set(stamps)) == len(stamps), "a versionstamp was used twice"
        states: list[State] = [{}]
        for _, run in self.commits:
            states.append(replay(states[-1], run))
        return stamps, states

    def _seen(self, call: Call, stamps: list[bytes], states: list[State]) -> list[int]:
        """Return which states a call that was answered can have seen or left: one at least."""
        if call.stamp is not None:
            return [stamps.index(call.stamp)]
        assert call.run is not None
        possible = []
        for place, state in enumerate(states):
            if stamps[place] >= call.known and (call.key is None or state.get(call.key) == call.value):
                try:
                    run_alone(state, call.run)
                except AssertionError:
                    continue
                possible.append(place)
        assert possible, "a read saw what was not there, or not what was committed before it began"
        return possible


def _version(stamp: bytes) -> bytes:
    return stamp[:8]
