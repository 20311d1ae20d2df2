"""What a commit has written of the rules of types, and of the order in which its jobs have moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import itemgetter
from typing import Any

from tests.simulation.complaints import named
from tests.simulation.model_job import Key
from tests.simulation.operations import Operations
from tests.simulation.rows import names_in, rows_of, value_in


def wrong_rules(
    operations: Operations, written: Mapping[bytes, bytes | None], sections: tuple[bytes, ...]
) -> Iterator[str]:
    """Yield which types are paused, or keep their jobs, otherwise than was said.

    Args:
        operations: that have done the commit's operations last.
        written: rows, None for those that were removed.
        sections: where the rules are.
    """
    wanted: dict[bytes, Any] = {}
    for type, paused in operations.own_pauses.items():
        wanted[rows_of(type).paused] = () if paused else None
    for type, retention in operations.own_retentions.items():
        wanted[rows_of(type).retention] = (retention.keep, retention.keep_failed)
    for key, value in wanted.items():
        raw = written.get(key)
        stored = None if raw is None else value_in(key, raw) or ()
        if key not in written or stored != value:
            yield f"{names_in(key)} must be {value!r}, but is {raw!r}"
    for key in written:
        if key.startswith(sections) and key not in wanted:
            yield f"{names_in(key)} was written for nothing"


def wrong_order(moved: list[tuple[int, bytes, Key]]) -> Iterator[str]:
    """Yield jobs moved by one transaction whose seqs have not the order in which they were moved."""
    if len(moved) < 2:
        return
    moved.sort(key=itemgetter(0))
    for (_, seq, key), (_, following, after) in pairwise(moved):
        if seq >= following:
            yield f"{named(*key)} has moved before {named(*after)}, but its seq is later"
