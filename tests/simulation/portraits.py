"""What of a store its copy must have too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from tests import reader
from tests.reader import Record

Rows: TypeAlias = Mapping[bytes, bytes]
"""What is stored, without the service's prefix."""

_OF_TYPES: Final = ("ACTIVITY_TIMEOUT", "PAUSED", "RETENTION", "PERIODIC", "DECLARED", "REDACTION")


class Portrait(NamedTuple):
    """What of a store its copy must have too.

    Attributes:
        jobs: by type and id.
        queues: ids in the order in which they are taken, by type.
        types: what is told of types, by family and key.
    """

    jobs: dict[tuple[Any, ...], Record]
    queues: dict[Any, list[Any]]
    types: dict[tuple[str, bytes], Any]


def portrait(rows: Rows) -> Portrait:
    """Return what of these rows a copy must have."""
    found = Portrait({}, defaultdict(list), {})
    for key, value in sorted(rows.items()):
        row = reader.row(key, value)
        if row.family == "DATA":
            found.jobs[row.names] = row.value
        elif row.family == "READY":
            found.queues[row.names[0]].append(row.names[-1])
        elif row.family in _OF_TYPES:
            found.types[row.family, key] = row.value
    return found


def differences(source: Portrait, before: Portrait, target: Portrait) -> Iterator[str]:
    """Yield what is not in a target as it must be, whether or not it had something before."""
    for key in source.jobs.keys() | before.jobs.keys() | target.jobs.keys():
        was, wanted, there = before.jobs.get(key), source.jobs.get(key), target.jobs.get(key)
        if there is None:
            yield f"{key} is missing"
        elif was is not None:
            if there != was:
                yield f"{key} was there as {was}, and is {there}"
        elif wanted is None:
            yield f"{key} is there, and should not be"
        elif wanted.lock is None:
            if there._replace(seq=b"") != wanted._replace(seq=b""):
                yield f"{key} is {wanted}, and was copied as {there}"
        elif wanted.cancel:
            if there.outcome != "canceled" or there.data != wanted.data:
                yield f"{key} was canceled, and was copied as {there}"
        elif there.state not in ("ready", "scheduled") or there.data != wanted.data:
            yield f"{key} is running, and was copied as {there}"
    for type, ids in source.queues.items():
        if before.jobs:
            continue
        copied = target.queues.get(type, [])
        if [id for id in copied if id in ids] != ids:
            yield f"the queue of {type!r} is {copied}, and was {ids}"
    for what, told in source.types.items():
        there_told = target.types.get(what)
        if what[0] == "PERIODIC" and before.types.get(what) is not None:
            told = max(told, before.types[what])
        if there_told != told:
            yield f"{what} is {told!r}, and was copied as {there_told!r}"
    for what in target.types.keys() - source.types.keys() - before.types.keys():
        yield f"{what} is told of, and should not be"
