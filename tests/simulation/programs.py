"""Programs: a few reads and writes of one transaction over a handful of keys, and a plain model of what they do.

A program is drawn before it runs, so that each run of it does the same: only what it reads may differ. `play` does the
same to a dictionary, which says what its reads must have returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from jobs_service.errors import StoreError
from jobs_service.store.base import Bound, Snapshot, Transaction, Watch
from jobs_service.store.key_selector import KeySelector

LETTERS: Final = b"abcdef"
_VALUES: Final = (b"\x00", b"\x01", b"\x01\x00", b"")
"""So few that a key often has again what it had before."""
_OPERANDS: Final = (b"\x01", b"\xff", b"\x01\x00", b"\xff\xff\x00")
_REFUSED: Final = "refused"

_SELECTORS: Final[Mapping[str, Callable[[bytes], Bound]]] = {
    "from": bytes,
    "first from": KeySelector.first_greater_or_equal,
    "first after": KeySelector.first_greater_than,
    "last until": KeySelector.last_less_or_equal,
    "last before": KeySelector.last_less_than,
}
_READS: Final = ("get", "get", "many", "range", "range", "range")
_WRITES: Final = ("set", "set", "clear", "clear range", "add", "add", "rely", "rely on range", "stamp", "read stamp")


@dataclass(frozen=True)
class Step:
    """One operation of a program.

    Attributes:
        name: of it.
        keys: its key, or the begin and the end of its range, or all that are read together.
        argument: value, operand, or limit.
        bounds: how begin and end of a range are named.
        reverse: whether the range is read from its end.
        snapshot: whether a read relies on nothing.
    """

    name: str
    keys: tuple[bytes, ...]
    argument: Any = None
    bounds: tuple[str, str] = ("from", "from")
    reverse: bool = False
    snapshot: bool = False


@dataclass(frozen=True)
class Program:
    """What one transaction is to do.

    Attributes:
        steps: in order. The last ones read what is watched: what the transaction sees or leaves there.
        watched: the keys that are watched, in the order of those reads.
        writes: whether it writes; otherwise it only reads.
        fails: whether it raises in the end.
    """

    steps: tuple[Step, ...]
    watched: tuple[bytes, ...]
    writes: bool
    fails: bool


class GaveUp(Exception):
    """What a program raises that fails."""


def edges(prefix: bytes) -> tuple[bytes, bytes]:
    """Return the keys before and behind those of the programs: so none is named by its place among those of others."""
    return prefix, prefix + b"~"


def draw_program(random: Random, prefix: bytes) -> Program:
    """Draw a program.

    Args:
        random: where it is drawn from.
        prefix: of the keys. Before and behind them all there is one that no program writes: see `edges`.
    """
    choose = random.choice
    keys = [prefix + bytes([letter]) for letter in LETTERS[: choose([1, 3, len(LETTERS)])]]
    writes = random.random() < 0.8
    names = [choose(_WRITES if writes and random.random() < 0.6 else _READS) for _ in range(random.randint(1, 5))]
    steps = [_draw_step(random, name, keys, prefix) for name in names]
    watched = tuple(choose(keys) for _ in range(choose([0, 0, 1, 2])))
    # What it adds to is known only to who relies on it.
    added = {step.keys[0] for step in steps if step.name == "add"}
    steps += [Step("get", (key,), snapshot=key not in added) for key in watched]
    return Program(tuple(steps), watched, writes, writes and random.random() < 0.1)


def draw_meeting(random: Random, prefix: bytes, places: int) -> list[Program]:
    """Draw programs that meet at one key: those who look at it and watch it, and those who change it just then.

    Args:
        random: where they are drawn from.
        prefix: of the keys.
        places: how many keys they may meet at.
    """
    key = prefix + bytes([random.choice(LETTERS[:places])])
    look = Step("get", (key,))
    met = []
    for _ in range(random.randint(2, 4)):
        name = random.choice(("set", "set", "clear"))
        change = Step(name, (key,), random.choice(_VALUES) if name == "set" else None)
        watches = random.random() < 0.5
        met += [
            Program((look,), (key,), writes=False, fails=False),
            Program((change, look) if watches else (change,), (key,) if watches else (), writes=True, fails=False),
        ]
    return random.sample(met, len(met))


def _draw_step(random: Random, name: str, keys: Sequence[bytes], prefix: bytes) -> Step:
    choose = random.choice
    key, snapshot = choose(keys), random.random() < 0.2
    low, high = sorted(random.choices([*keys, keys[-1] + b"\xff"], k=2))
    if name == "many":
        return Step(name, tuple(random.choices(keys, k=random.randint(1, 3))), snapshot=snapshot)
    if name == "range":
        limit = choose([0, 1, 1, 2, 3])
        bounds = (choose([*_SELECTORS]), choose([*_SELECTORS])) if random.random() < 0.3 else ("from", "from")
        return Step(name, (low, high), limit, bounds, random.random() < 0.4, snapshot)
    if name in ("clear range", "rely on range"):
        return Step(name, (low, high))
    if name == "set":
        return Step(name, (key,), choose(_VALUES))
    if name == "add":
        return Step(name, (key,), choose(_OPERANDS))
    return Step(name, (key,), snapshot=snapshot and name == "get")


async def perform(tx: Transaction, program: Program, stamps: bytes) -> tuple[list[Any], list[Watch]]:
    """Do what a program says; return the result of each step, and its watches.

    Args:
        tx: the transaction.
        program: to do.
        stamps: the prefix of what gets its versionstamp, which is no other program's.
    """
    results = []
    for number, step in enumerate(program.steps):
        results.append(await _do(tx, step, stamps + b"%d" % number))
    return results, [tx.watch(key) for key in program.watched]


async def _do(tx: Transaction, step: Step, stamped: bytes) -> Any:
    reads: Snapshot = tx.snapshot if step.snapshot else tx
    key = step.keys[0]
    match step.name:
        case "get":
            return await reads.get(key)
        case "many":
            return await reads.get_many(step.keys)
        case "range":
            begin, end = (_SELECTORS[how](each) for how, each in zip(step.bounds, step.keys, strict=True))
            return await reads.get_range(begin, end, limit=step.argument, reverse=step.reverse)
        case "set":
            tx[key] = step.argument
        case "clear":
            del tx[key]
        case "clear range":
            del tx[key : step.keys[1]]
        case "add":
            tx.add(key, step.argument)
        case "rely":
            tx.add_read_conflict_key(key)
        case "rely on range":
            tx.add_read_conflict_range(key, step.keys[1])
        case "stamp":
            tx.stamp_key(stamped, b"/", b"key")
        case "read stamp":
            tx.stamp_value(stamped, b"value", b"/")
            try:
                return await tx.get(stamped)
            except StoreError:
                return _REFUSED
    return None


def play(program: Program, state: Mapping[bytes, bytes], prefix: bytes) -> tuple[list[Any], dict[bytes, bytes]]:
    """Do a program on a plain dictionary: return what each step returns, and the dictionary afterwards."""
    seen = {**dict.fromkeys(edges(prefix), b""), **state}
    results = [_play(step, seen) for step in program.steps]
    return results, {key: value for key, value in seen.items() if key not in edges(prefix)}


def _play(step: Step, seen: dict[bytes, bytes]) -> Any:
    key = step.keys[0]
    match step.name:
        case "get":
            return seen.get(key)
        case "many":
            return [seen.get(each) for each in step.keys]
        case "range":
            begin, end = (_bound(how, each, seen) for how, each in zip(step.bounds, step.keys, strict=True))
            found = sorted((pair for pair in seen.items() if begin <= pair[0] < end), reverse=step.reverse)
            return found[: step.argument or None]
        case "set":
            seen[key] = step.argument
        case "clear":
            seen.pop(key, None)
        case "clear range":
            for each in [each for each in seen if key <= each < step.keys[1]]:
                del seen[each]
        case "add":
            size = len(step.argument)
            before = int.from_bytes(seen.get(key, b"")[:size], "little")
            total = before + int.from_bytes(step.argument, "little")
            seen[key] = (total % 256**size).to_bytes(size, "little")
        case "read stamp":
            return _REFUSED
    return None


def _bound(how: str, key: bytes, seen: Mapping[bytes, bytes]) -> bytes:
    """Return where a range begins or ends, among the keys that there are; behind them all come those of others."""
    if how == "last until":
        return max(each for each in seen if each <= key)
    if how == "last before":
        return max(each for each in seen if each < key)
    return key + b"\x00" if how == "first after" else key


def relied_on(program: Program, results: Sequence[Any]) -> list[Any]:
    """Return, of the results of a program, those that must still hold when it commits."""
    return [result for step, result in zip(program.steps, results, strict=True) if not step.snapshot]
