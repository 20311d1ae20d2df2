"""The counters of a replication over all its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(slots=True)
class Statistics:
    """Counters of a replication since it was first added, with CouchDB's names.

    Attributes:
        missing_checked: revisions listed by the source.
        missing_found: revisions of these that the target lacked.
        docs_read: revisions read from the source.
        docs_written: revisions of these that the target has taken.
        doc_write_failures: revisions of these that the target has refused for good.
        bulk_get_docs: revisions received by `_bulk_get`.
        bulk_get_attempts: revisions requested by `_bulk_get`.
    """

    missing_checked: int = 0
    missing_found: int = 0
    docs_read: int = 0
    docs_written: int = 0
    doc_write_failures: int = 0
    bulk_get_docs: int = 0
    bulk_get_attempts: int = 0

    def add(self, other: Statistics) -> None:
        """Add the counters of another object."""
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def at_least(self, other: Statistics) -> Statistics:
        """Return the larger of each counter: one of two records of the same work may be out of date."""
        return Statistics(**{name: max(getattr(self, name), getattr(other, name)) for name in COUNTERS})

    def to_data(self) -> dict[str, int]:
        """Return the counters as plain data, as in a checkpoint."""
        return {name: getattr(self, name) for name in COUNTERS}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Statistics:
        """Return the counters of a checkpoint or of a job; missing and invalid values count as 0."""
        values = {name: data.get(_OTHER_NAMES.get(name, name), data.get(name)) for name in COUNTERS}
        return cls(**{name: value for name, value in values.items() if type(value) is int and value >= 0})


COUNTERS = tuple(field.name for field in fields(Statistics))
"""The names of the counters."""

_OTHER_NAMES = {"missing_checked": "revisions_checked", "missing_found": "missing_revisions_found"}
"""CouchDB's names for two of the counters in the status of a job."""
