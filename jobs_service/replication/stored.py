"""What the store keeps of replications beside their jobs: its own id, and credentials that were given inline.

A job's data can be read by everybody who can list jobs, is printed and copied: it has masked endpoints only. What was
masked is kept under a key of its own, which nothing prints, and which is not copied to another store with the job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from jobs_service import JobNotFound, JobsService, JobTransaction, RecordDamaged
from jobs_service.replication.endpoint import MASK, masked_form
from jobs_service.replication.errors import ReplicationError
from jobs_service.replication.options import ReplicationOptions

ONE_SHOT: Final = "replication"
"""The type of the jobs that copy what there is, and end."""

CONTINUOUS: Final = "continuous-replication"
"""The type of the jobs that go on for ever, and take turns."""

_PREFIX: Final = b"jobs_service/replication/"
_INSTALLATION: Final = _PREFIX + b"installation"
_CREDENTIALS: Final = _PREFIX + b"credentials/"
_SWEPT: Final = _PREFIX + b"swept"
_SWEPT_TOGETHER: Final = 100
_ENDS: Final = ("source", "target")


class CredentialsMissing(ReplicationError):
    """A job's credentials are not in this store: it was copied from another one, or they were removed."""


async def installation_id(tx: JobTransaction, new: str) -> str:
    """Return the id of the store; the first who asks gives it one.

    Args:
        tx: of the store.
        new: the id of a store that has none.
    """
    found = await tx.kv.get(_INSTALLATION)
    if found is None:
        tx.kv[_INSTALLATION] = new.encode()
        return new
    return found.decode()


def masked(options: ReplicationOptions) -> dict[str, Any]:
    """Return the options as a job's data has them."""
    data = options.to_data()
    return {**data, **{end: masked_form(data[end]) for end in _ENDS}}


def keep_credentials(
    tx: JobTransaction, type: str, id: str, options: ReplicationOptions, *, are_needed: bool = False
) -> None:
    """Keep the endpoints of a job that have credentials in them.

    Args:
        tx: in which the job is added.
        type, id: of the job.
        options: as they were given.
        are_needed: whether the job goes on with what it has, so that credentials may be replaced but not removed.
    """
    data = options.to_data()
    inline = {end: data[end] for end in _ENDS if masked_form(data[end]) != data[end]}
    if inline:
        tx.kv[_key(type, id)] = json.dumps(inline).encode()
    elif not are_needed:
        del tx.kv[_key(type, id)]


async def unmasked(jobs: JobsService, type: str, id: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a job, with the credentials that the store keeps.

    Raises:
        CredentialsMissing: the store does not have them.
    """

    async def read(tx: JobTransaction) -> bytes | None:
        return await tx.kv.get(_key(type, id))

    kept = await jobs.transact(read)
    found = {**data, **(json.loads(kept) if kept else {})}
    if kept is None and any(MASK in json.dumps(found.get(end)) for end in _ENDS):
        raise CredentialsMissing(
            "its credentials are not in this store; ask for the replication again, or let it name secrets "
            "(env:NAME, file:PATH, secret:NAME), which go with a job that is copied"
        )
    return found


async def sweep_credentials(jobs: JobsService) -> None:
    """Remove the credentials of jobs that are gone: of some at a time, and the next time of those that follow."""

    async def sweep(tx: JobTransaction) -> None:
        after = await tx.kv.snapshot.get(_SWEPT) or _CREDENTIALS
        found = await tx.kv.get_range(after + b"\x00", _CREDENTIALS + b"\xff", limit=_SWEPT_TOGETHER)
        for key, _ in found:
            type, _, id = key.removeprefix(_CREDENTIALS).decode().partition("/")
            try:
                await tx.get(type, id)
            except JobNotFound:
                del tx.kv[key]
            except RecordDamaged:  # it is there; another version may read it
                pass
        if len(found) == _SWEPT_TOGETHER:
            tx.kv[_SWEPT] = found[-1][0]
        elif after != _CREDENTIALS:
            del tx.kv[_SWEPT]

    await jobs.transact(sweep)


def _key(type: str, id: str) -> bytes:
    return _CREDENTIALS + f"{type}/{id}".encode()
