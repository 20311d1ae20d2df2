"""An independent reader of what a store holds: written from docs/layout.md alone, it imports nothing of the package.

A mistake that the package makes when it writes, and again when it reads, is none to the package. It is one here.
"""

from __future__ import annotations

from tests.reader.counts import Counts
from tests.reader.documents import value_of
from tests.reader.records import Event, Notes, Record, notes, record
from tests.reader.rows import Row, names, row
from tests.reader.tuples import Stamp, Undocumented, elements

__all__ = [
    "Counts",
    "Event",
    "Notes",
    "Record",
    "Row",
    "Stamp",
    "Undocumented",
    "elements",
    "names",
    "notes",
    "record",
    "row",
    "value_of",
]
