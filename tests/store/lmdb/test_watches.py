"""Looking up what is watched after another process's commit: what fires, and who has to wait for it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

from jobs_service.store.base import KeyValue, Watch
from jobs_service.store.embedded import Watches


class State:
    """A state that holds what it is given, and may keep whoever looks waiting."""

    def __init__(self, values: dict[bytes, bytes | None]) -> None:
        self.values = values
        self.looked = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.looks = 0

    def get(self, key: bytes) -> bytes | None:
        self.looks += 1
        self.looked.set()
        assert self.go_on.wait(60)
        return self.values.get(key)

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        raise NotImplementedError


def watching(key: bytes, baseline: bytes | None) -> Watch:
    """Return a watch that expects a value."""
    made = Watch(key)
    made.baseline = baseline
    return made


def test_what_has_another_value_fires_whatever_came_and_went_before() -> None:
    choose = random.Random(1)
    watches = Watches()
    alive: dict[Watch, None] = {}
    for number in range(300):
        new = [watching(b"%d" % choose.randrange(40), choose.choice([None, b"a", b"b"])) for _ in range(10)]
        watches.register(new, number)
        alive.update(dict.fromkeys(new))
        for watch in choose.sample([*alive], min(len(alive), 5)):
            watches.forget(watch)
            del alive[watch]
        state = State({b"%d" % key: choose.choice([None, b"a", b"b"]) for key in range(40)})
        due = {watch for watch in alive if state.values.get(watch.key) != watch.baseline}
        if choose.random() < 0.2:
            assert set(watches.take_all()) == alive.keys()
            alive.clear()
            continue
        fired = watches.changed_in(state, number)
        assert set(fired) == due
        assert len(fired) == len(due)
        assert state.looks <= 40
        for watch in fired:
            del alive[watch]


def test_a_watch_that_is_younger_than_the_state_does_not_fire() -> None:
    watches = Watches()
    watches.register([watching(b"a", b"new")], 8)
    assert watches.changed_in(State({b"a": b"old"}), 7) == []
    assert len(watches.changed_in(State({b"a": b"newer"}), 9)) == 1


def test_nobody_waits_for_a_look_at_what_is_watched() -> None:
    """Not the writer, whose commits fire watches, nor who makes or drops some; what they do is not undone by it."""
    watches = Watches()
    kept, dropped, fired = (watching(key, b"old") for key in (b"kept", b"dropped", b"fired"))
    watches.register([kept, dropped, fired], 1)
    state = State({b"kept": b"new", b"dropped": b"new", b"fired": b"new", b"late": b"other"})
    state.go_on.clear()
    found: list[Watch] = []
    look = threading.Thread(target=lambda: found.extend(watches.changed_in(state, 2)))
    look.start()
    assert state.looked.wait(60)
    late = watching(b"late", b"new")
    watches.register([late], 3)
    watches.forget(dropped)
    assert watches.changed({b"fired": b"new"}, 3) == [fired]
    state.go_on.set()
    look.join()
    assert found == [kept]
    assert watches.take_all() == [late]
