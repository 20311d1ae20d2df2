"""The locks by which a dead process is told from a living one; kills are in tests/system/test_dead_processes.py."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs_service.store import process_locks
from jobs_service.store.files import lock_file
from jobs_service.store.process_locks import INSTANCE_BYTES, MOST_AT_ONCE, ProcessLocks


class Locks:
    """Makes instances that use one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "processes"
        self._made: list[ProcessLocks] = []

    def enter(self) -> ProcessLocks:
        """Return a new instance that holds its lock."""
        made = ProcessLocks(self.directory, os.urandom)
        made.enter()
        self._made.append(made)
        return made

    def leave(self) -> None:
        for each in self._made:
            each.leave()

    def leave_behind(self, count: int) -> set[bytes]:
        """Make the files of so many dead instances, and return their ids."""
        self.directory.mkdir(exist_ok=True)
        made = {os.urandom(INSTANCE_BYTES) for _ in range(count)}
        for each in made:
            (self.directory / each.hex()).touch()
        return made

    @property
    def files(self) -> list[str]:
        return sorted(os.listdir(self.directory))


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[Locks]:
    """Instances in a directory of their own, which let go of their locks at the end."""
    made = Locks(tmp_path)
    yield made
    made.leave()


def test_a_file_that_nobody_has_locked_is_of_a_dead_instance_until_it_is_forgotten(locks: Locks) -> None:
    [dead] = locks.leave_behind(1)
    one, other = locks.enter(), locks.enter()
    assert one.dead() == [dead]
    assert other.dead() == []  # it is left to the first who has found it
    assert one.dead() == [dead]
    one.forget([dead])
    assert one.dead() == other.dead() == []
    assert dead.hex() not in locks.files


def test_what_one_has_found_but_not_forgotten_the_next_finds(locks: Locks) -> None:
    dead = locks.leave_behind(2)
    one, other = locks.enter(), locks.enter()
    assert set(one.dead()) == dead
    one.leave()
    assert set(other.dead()) == dead


def test_a_copy_of_the_directory_made_by_the_same_process_lets_go_of_no_lock(locks: Locks, tmp_path: Path) -> None:
    one, other = locks.enter(), locks.enter()
    for each in locks.files:  # as a backup reads them
        with open(locks.directory / each, "rb") as file:
            file.read()
    shutil.copytree(locks.directory, tmp_path / "copy")
    assert one.dead() == other.dead() == []


def test_a_file_that_is_removed_by_hand_is_never_taken_for_dead(locks: Locks) -> None:
    one, other = locks.enter(), locks.enter()
    (locks.directory / other.instance.hex()).unlink()
    assert one.dead() == []
    shutil.rmtree(locks.directory)
    assert one.dead() == other.dead() == []
    other.leave()


def test_who_enters_while_another_takes_the_new_file_for_a_dead_ones_takes_another(locks: Locks) -> None:
    """The other looks between the file's making and its locking."""
    looking = locks.enter()
    taken = bytes(INSTANCE_BYTES)
    (locks.directory / taken.hex()).touch()
    assert looking.dead() == [taken]
    drawn = iter([taken, looking.instance, b"12345678"])
    entering = ProcessLocks(locks.directory, lambda _: next(drawn))
    entering.enter()
    assert entering.instance == b"12345678"
    assert looking.dead() == [taken]
    entering.leave()


def test_who_enters_while_another_removes_the_new_file_as_a_dead_ones_takes_another(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = locks.enter()

    def lock_late(descriptor: int) -> bool:
        monkeypatch.undo()
        looking.forget(looking.dead())
        return lock_file(descriptor)

    monkeypatch.setattr(process_locks, "lock_file", lock_late)
    entering = locks.enter()
    assert locks.files == sorted([looking.instance.hex(), entering.instance.hex()])


def test_many_living_ones_are_tried_in_turn_and_many_dead_ones_found_at_once(locks: Locks) -> None:
    each = [locks.enter() for _ in range(50)]
    dead = locks.leave_behind(2 * MOST_AT_ONCE)
    found: set[bytes] = set()
    looks = 0
    while found < dead:
        looks += 1
        new = each[0].dead()
        assert len(new) <= MOST_AT_ONCE
        each[0].forget(new)
        found |= set(new)
    assert found == dead
    assert looks < 20
    assert sorted(one.instance.hex() for one in each) == locks.files


def test_however_many_live_a_process_that_the_system_does_not_know_any_more_is_found_at_once(locks: Locks) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    living = {locks.enter().instance for _ in range(300)}
    dead = locks.leave_behind(30)
    for each in dead:
        (locks.directory / each.hex()).write_text(str(ended.pid))
    for _ in range(3):
        one = locks.enter()
        assert set(one.dead()) == dead
        one.leave()
    assert {bytes.fromhex(name) for name in locks.files} == living | dead


@pytest.mark.parametrize("noted", ["", "no number", "-1", "0", "1", "99999999999999999999", "9" * 50])
def test_whatever_a_file_says_only_its_lock_tells_whether_it_is_a_dead_ones(locks: Locks, noted: str) -> None:
    one, other = locks.enter(), locks.enter()
    [dead] = locks.leave_behind(1)
    for each in (dead, other.instance):
        (locks.directory / each.hex()).write_text(noted)
    assert one.dead() == [dead]
    one.forget([dead])
    assert one.dead() == one.dead() == []
