"""Plans as text: what `scripts/simulate --only` takes, and the command that replays a plan."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby

from jobs_service.testing.loop import Plan

_NUMBERS = re.compile(r"\d+(-\d+)?")
_KIND = re.compile(r"[^\s,:]+(:[^\s,:]+)*")


def only_text(plan: Plan) -> str:
    """Return what of its seed a plan keeps, such as "o=1-5,9 f=conflict:3,kill:0 d=".

    A letter with nothing behind it keeps none, a letter that is missing keeps all.
    """
    parts = []
    if plan.operations is not None:
        parts.append("o=" + ",".join(_ranges(plan.operations)))
    if plan.faults is not None:
        parts.append("f=" + ",".join(_fault_ranges(plan.faults)))
    if plan.deviations is not None:
        parts.append("d=" + ",".join(_ranges(plan.deviations)))
    return " ".join(parts)


def parse_only(seed: int, text: str) -> Plan:
    """Return the plan that keeps of a seed what the text says.

    Raises:
        ValueError: `only_text` would not write such a text; the message names the part that is wrong.
    """
    kept: dict[str, list[str]] = {}
    for part in text.split():
        letter, equals, items = part.partition("=")
        if letter not in ("o", "f", "d") or not equals:
            raise ValueError(f"{part!r} is none of o=NUMBERS, f=FAULTS, d=NUMBERS")
        if letter in kept:
            raise ValueError(f"{letter}= occurs twice")
        kept[letter] = items.split(",") if items else []
    return Plan(
        seed,
        operations=_numbers(kept["o"]) if "o" in kept else None,
        faults=frozenset(_faults(kept["f"])) if "f" in kept else None,
        deviations=_numbers(kept["d"]) if "d" in kept else None,
    )


def replay_command(plan: Plan, options: Sequence[str] = ()) -> str:
    """Return the shell command that replays a plan.

    Args:
        options: those of `scripts/simulate` that its run depends on.
    """
    only = only_text(plan)
    words = ["scripts/simulate", "--seed", str(plan.seed), *options, *(["--only", only] if only else [])]
    return shlex.join(words)


def fault_key(fault: str) -> tuple[str, int]:
    """Return the kind and the number of a fault, which also order faults."""
    kind, _, number = fault.rpartition(":")
    return kind, int(number)


def _ranges(numbers: Collection[int]) -> Iterator[str]:
    ordered = sorted(numbers)
    for _, run in groupby(enumerate(ordered), key=lambda place: place[1] - place[0]):
        members = [number for _, number in run]
        yield str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}"


def _fault_ranges(faults: Collection[str]) -> Iterator[str]:
    ordered = sorted(map(fault_key, faults))
    for kind, same in groupby(ordered, key=lambda fault: fault[0]):
        for numbers in _ranges([number for _, number in same]):
            yield f"{kind}:{numbers}"


def _numbers(items: Iterable[str]) -> frozenset[int]:
    return frozenset(number for item in items for number in _range(item))


def _faults(items: Iterable[str]) -> Iterator[str]:
    for item in items:
        kind, _, numbers = item.rpartition(":")
        if not _KIND.fullmatch(kind):
            raise ValueError(f"{item!r} is no fault, which looks like conflict:3 or conflict:3-5")
        for number in _range(numbers):
            yield f"{kind}:{number}"


def _range(text: str) -> range:
    if not _NUMBERS.fullmatch(text):
        raise ValueError(f"{text!r} is neither a number nor a range such as 3-5")
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
