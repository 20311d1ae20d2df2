"""Rows of an unfinished copy in its target: a note of its progress, and a claim on every type it has begun.

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
    """The steps of a copy. Jobs are read in the order of the first three."""

    RUNNING = "running"
    """Running jobs: pages of ACTIVITY."""
    READY = "ready"
    """Ready jobs: pages of READY."""
    REST = "rest"
    """The jobs that have not been copied yet: pages of DATA."""
    SETTINGS = "settings"
    """All jobs are copied: the types get their settings, and are released for use."""
    REMOVING = "removing"
    """The copied jobs are removed, to start over."""


@dataclass(frozen=True, slots=True)
class Note:
    """The progress of a copy.

    Attributes:
        source: the address of the source.
        fingerprint: the fingerprint of the source; see `Overview`.
        phase: the current one.
        after: the last key done in this phase, without the section's prefix; hexadecimal.
        jobs: number of jobs copied or skipped so far.
        skipped: number of these jobs that the target already had.
        forced: whether the stores may have been in use during the copy.
    """

    source: str
    fingerprint: str
    phase: Phase = Phase.RUNNING
    after: str = ""
    jobs: int = 0
    skipped: int = 0
    forced: bool = False

    def encode(self) -> bytes:
        """Return the note as stored in the target."""
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Note:
        """Decode a stored note.

        Raises:
            CopyRefused: another version wrote it.
            StoreError: it is damaged.
        """
        try:
            fields = json.loads(raw)
            version = fields.pop("version")
            if version == _VERSION:
                bytes.fromhex(fields["after"])
                return cls(**{**fields, "phase": Phase(fields["phase"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"the note of an unfinished copy is damaged: {error}") from None
        raise CopyRefused(
            f"the target has an unfinished copy by another version of jobs_service ({shown(version)}): finish it with "
            "that one"
        )


class TypeClaim(NamedTuple):
    """Marks a type of the target: a copy has begun to write its jobs.

    Attributes:
        stamp: the versionstamp of the copy's last transaction with jobs of the type. It equals the type's activity
            stamp until another program changes such jobs.
        flags: WAS_PAUSED, HAD_JOBS.
    """

    stamp: bytes
    flags: int

    @classmethod
    def decode(cls, raw: bytes) -> TypeClaim:
        """Decode a claim written by `set_claim`.

        Raises:
            StoreError: it is damaged.
        """
        if len(raw) != STAMP_BYTES + 1:
            raise StoreError(
                f"an unfinished copy's claim on a type is damaged: it has {len(raw)} bytes, not {STAMP_BYTES + 1}"
            )
        return cls(raw[:STAMP_BYTES], raw[STAMP_BYTES])


def note_key(keyspace: Keyspace) -> bytes:
    """Return the key of the note."""
    return keyspace.sections[COPYING]


def claim_key(keyspace: Keyspace, keys: TypeKeys) -> bytes:
    """Return the key of the claim on a type."""
    return keyspace.sections[COPYING] + keys.packed


def set_claim(transaction: Transaction, keyspace: Keyspace, keys: TypeKeys, flags: int) -> None:
    """Claim a type with this transaction's versionstamp, which becomes its activity stamp as well."""
    transaction.stamp_value(claim_key(keyspace, keys), b"", bytes((flags,)))
    transaction.stamp_value(keys.watch_activity, b"", b"")
