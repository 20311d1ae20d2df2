"""What an unfinished copy keeps in its target: a note of how far it has come, and a mark on every type it has begun.

Both are written in the transactions that write the jobs.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from jobs_service.copying.results import CopyRefused
from jobs_service.errors import StoreError, shown
from jobs_service.layer.keyspace import COPYING, Keyspace, TypeKeys
from jobs_service.store.base import STAMP_BYTES, Transaction

_VERSION: Final = 1

WAS_PAUSED: Final = 1
"""The type was paused in the target before the copy paused it."""
HAD_JOBS: Final = 2
"""There were jobs of the type in the target before the copy."""


class Phase(enum.StrEnum):
    """Which part of the source is read; in this order."""

    RUNNING = "running"
    """Running jobs: pages of ACTIVITY."""
    READY = "ready"
    """Ready jobs: pages of READY."""
    REST = "rest"
    """What has not been copied yet: pages of DATA."""
    SETTINGS = "settings"
    """All jobs are there: the types get their settings, and are opened."""
    REMOVING = "removing"
    """What was copied is removed, to start over."""


@dataclass(frozen=True, slots=True)
class Note:
    """How far a copy has come.

    Attributes:
        source: the address of the store that is copied.
        fingerprint: of the source; see `Look`.
        phase: what is being copied.
        after: the last key of the phase that is done, without the section's prefix; hexadecimal.
        jobs: that have been copied or skipped so far.
        skipped: those among them that were in the target already.
        forced: whether some of it was copied although one side was in use.
    """

    source: str
    fingerprint: str
    phase: Phase = Phase.RUNNING
    after: str = ""
    jobs: int = 0
    skipped: int = 0
    forced: bool = False

    def encode(self) -> bytes:
        """Return what the target keeps."""
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Note:
        """Return what `encode` encoded.

        Raises:
            CopyRefused: another version has written it.
            StoreError: it is damaged.
        """
        try:
            fields = json.loads(raw)
            version = fields.pop("version")
            if version == _VERSION:
                return cls(**{**fields, "phase": Phase(fields["phase"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"the note of an unfinished copy is damaged: {error}") from None
        raise CopyRefused(
            f"the target has an unfinished copy by another version of jobs_service ({shown(version)}): finish it with "
            "that one"
        )


class Mark(NamedTuple):
    """What is known of a type that a copy has begun in the target.

    Attributes:
        stamp: the versionstamp of the copy's last transaction with jobs of the type. As long as nobody else does
            anything with jobs of the type, it is that of the type's last activity as well.
        flags: WAS_PAUSED, HAD_JOBS.
    """

    stamp: bytes
    flags: int

    @classmethod
    def decode(cls, raw: bytes) -> Mark:
        """Return what `set_mark` has written."""
        return cls(raw[:STAMP_BYTES], raw[STAMP_BYTES])


def note_key(keyspace: Keyspace) -> bytes:
    """Return where the note is."""
    return keyspace.sections[COPYING]


def mark_key(keyspace: Keyspace, keys: TypeKeys) -> bytes:
    """Return where the mark on a type is."""
    return keyspace.sections[COPYING] + keys.packed


def set_mark(transaction: Transaction, keyspace: Keyspace, keys: TypeKeys, flags: int) -> None:
    """Mark a type with this transaction's versionstamp, and count it as the type's activity."""
    transaction.stamp_value(mark_key(keyspace, keys), b"", bytes((flags,)))
    transaction.stamp_value(keys.watch_activity, b"", b"")
