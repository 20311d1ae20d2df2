"""Data of replications in the store: values beside their jobs, and the status that a job's data tells.

A job's data is visible to everybody with access to jobs, is printed and copied: it has masked endpoints only. The
masked credentials, long lists of document ids, and new options of running jobs have keys of their own, which are
never printed, and not copied to another store with the job.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Unpack
from urllib.parse import quote, unquote

from jobs_service import (
    HistoryKind,
    Job,
    JobNotFound,
    JobsService,
    JobState,
    JobTransaction,
    NoTypeTimeout,
    Outcome,
    RecordDamaged,
    RunningJob,
)
from jobs_service.replication.contract import ReplicationError
from jobs_service.replication.endpoint import MASK, SecretSource, masked_form
from jobs_service.replication.options import InvalidReplication, ReplicationOptions
from jobs_service.runner.options import HandlerKeywords
from jobs_service.sources import raised_file_limit

ONE_SHOT: Final = "replication"
"""The type of one-shot replications, which copy the present changes and end."""

CONTINUOUS: Final = "continuous-replication"
"""The type of continuous replications, which go on for ever and take turns."""

_PREFIX: Final = b"jobs_service/replication/"
_INSTALLATION: Final = _PREFIX + b"installation"
_VERSION: Final = _PREFIX + b"version"
_OF_JOBS: Final = _PREFIX + b"jobs/"
_SWEPT: Final = _PREFIX + b"swept"
_SWEPT_TOGETHER: Final = 100
_ENDS: Final = ("source", "target")
_CREDENTIALS, _IDS, _WANTED = "credentials", "doc_ids", "wanted"
_MOST_IDS: Final = 10_000
"""Most bytes of `doc_ids` in a job's data; a longer list is kept beside it, and its data has their number."""

_VALUE: Final = 90_000
"""Most bytes of one value beside a job: less than the limit of a store."""

_DOCUMENTS: Final = "documents/s"


# Values beside jobs


class CredentialsMissing(ReplicationError):
    """A job's credentials are not in this store: it was copied from another one, or they were removed."""


async def installation_id(tx: JobTransaction, new: str) -> str:
    """Return the id of the store; the first call sets it.

    Args:
        tx: a transaction of the store.
        new: the id for a store without one.
    """
    found = await tx.kv.get(_INSTALLATION)
    if found is None:
        tx.kv[_INSTALLATION] = new.encode()
        return new
    return found.decode()


def masked(options: ReplicationOptions) -> dict[str, Any]:
    """Return the options for a job's data: without credentials, and with the number of ids in place of a long list."""
    data = options.to_data()
    data |= {end: masked_form(data[end]) for end in _ENDS}
    if _are_many(options):
        data["doc_ids"] = len(options.doc_ids or ())
    return data


def keep_beside(tx: JobTransaction, type: str, id: str, options: ReplicationOptions) -> None:
    """Store the parts of the options that do not go into a job's data, and remove those of earlier options.

    Args:
        tx: the transaction that adds the job, or gives it these options.
        type, id: the type and the id of the job.
        options: the options as given.
    """
    data = options.to_data()
    inline = {end: data[end] for end in _ENDS if masked_form(data[end]) != data[end]}
    _put(tx, type, _CREDENTIALS, id, inline or None)
    _put(tx, type, _IDS, id, data["doc_ids"] if _are_many(options) else None)
    _put(tx, type, _WANTED, id, None)


async def want(tx: JobTransaction, job: Job, options: ReplicationOptions) -> None:
    """Give a running job new options: its run ends soon, and the next one has them.

    Args:
        tx: the transaction.
        job: the running job.
        options: the new options.
    """
    type, id = str(job.type), str(job.id)
    new = {"options": options.to_data()}
    if new["options"] == await _options_in(tx, job):
        _put(tx, type, _WANTED, id, None)
        return
    _put(tx, type, _WANTED, id, new)
    tx.kv.add(_VERSION, (1).to_bytes(8, "little"))


async def take_wanted(jobs: JobsService, job: RunningJob) -> dict[str, Any]:
    """Return a job's data, and apply new options to it first.

    Raises:
        InvalidReplication: the job was added by hand, with data that describes no replication.
        WorkerConflict: another worker has the job.
    """

    old, new_id = job.data if isinstance(job.data, dict) else {}, uuid.uuid4().hex

    async def take(tx: JobTransaction) -> dict[str, Any]:
        wanted = await _get(tx, str(job.type), _WANTED, str(job.id))
        if wanted is not None:
            data = {**old, "options": ReplicationOptions.from_data(wanted["options"])}
        elif "source" in old:  # the job was added by hand, with a document of `_replicator` as its data
            options = ReplicationOptions.from_document(old)
            data = {"installation": await installation_id(tx, new_id), "options": options}
        else:
            return old
        keep_beside(tx, str(job.type), str(job.id), data["options"])
        data["options"] = masked(data["options"])
        await tx.update(job, data)
        return data

    return await jobs.transact(take)


async def is_wanted(jobs: JobsService, job: RunningJob) -> bool:
    """Return whether a running job has new options."""
    return await jobs.transact(lambda tx: _get(tx, str(job.type), _WANTED, str(job.id))) is not None


async def version_of_wanted(jobs: JobsService) -> bytes | None:
    """Return a value that changes whenever a running job gets new options."""

    async def read(tx: JobTransaction) -> bytes | None:
        return await tx.kv.snapshot.get(_VERSION)

    return await jobs.transact(read)


async def unmasked(jobs: JobsService, type: str, id: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a job, complete with the values beside it.

    Raises:
        CredentialsMissing: the store does not have these values.
    """
    found = await jobs.transact(lambda tx: _whole(tx, type, id, data))
    if any(MASK in json.dumps(found.get(end)) for end in _ENDS) or isinstance(found.get("doc_ids"), int):
        raise CredentialsMissing(
            "its credentials or its doc_ids are not in this store; ask for the replication again, or let it name "
            "secrets (env:NAME, file:PATH, secret:NAME), which go with a job that is copied"
        )
    return found


async def sweep(jobs: JobsService) -> None:
    """Remove the values beside jobs that are gone: each call checks some keys, and the next call the following ones."""

    async def remove(tx: JobTransaction) -> None:
        after = await tx.kv.snapshot.get(_SWEPT) or _OF_JOBS
        found = await tx.kv.snapshot.get_range(after + b"\x00", _OF_JOBS + b"\xff", limit=_SWEPT_TOGETHER)
        for key, _ in found:
            type, _, id, _ = key.removeprefix(_OF_JOBS).decode().split("/", 3)
            try:
                await tx.get(type, unquote(id))
            except JobNotFound:
                del tx.kv[key]
            except RecordDamaged:  # the job is there; another version may read it
                pass
        if len(found) == _SWEPT_TOGETHER:
            tx.kv[_SWEPT] = found[-1][0]
        elif after != _OF_JOBS:
            del tx.kv[_SWEPT]

    await jobs.transact(remove)


def _are_many(options: ReplicationOptions) -> bool:
    return options.doc_ids is not None and len(json.dumps(options.doc_ids)) > _MOST_IDS


async def _options_in(tx: JobTransaction, job: Job) -> dict[str, Any]:
    data = job.data if isinstance(job.data, dict) else {}
    return await _whole(tx, str(job.type), str(job.id), data.get("options") or {})


async def _whole(tx: JobTransaction, type: str, id: str, data: Mapping[str, Any]) -> dict[str, Any]:
    whole = {**data, **(await _get(tx, type, _CREDENTIALS, id) or {})}
    if isinstance(whole.get("doc_ids"), int) and (ids := await _get(tx, type, _IDS, id)) is not None:
        whole["doc_ids"] = ids
    return whole


def _put(tx: JobTransaction, type: str, kind: str, id: str, value: Any) -> None:
    """Store a value beside a job, split over several keys; None removes it."""
    prefix = _key(type, kind, id)
    tx.kv.clear_range(prefix, prefix + b"\xff")
    text = b"" if value is None else json.dumps(value).encode()
    for number, start in enumerate(range(0, len(text), _VALUE)):
        tx.kv[prefix + b"%04d" % number] = text[start : start + _VALUE]


async def _get(tx: JobTransaction, type: str, kind: str, id: str) -> Any:
    prefix = _key(type, kind, id)
    parts = [value for _, value in await tx.kv.get_range(prefix, prefix + b"\xff")]
    return json.loads(b"".join(parts)) if parts else None


def _key(type: str, kind: str, id: str) -> bytes:
    return _OF_JOBS + f"{type}/{kind}/{quote(id, safe='')}/".encode()


# The status of a job


_RATE: Final = re.compile(rf"([\d,]+) {_DOCUMENTS}, ([\d,.]+) MB/s", re.ASCII)


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """The status of a replication.

    Attributes:
        continuous: whether the replication goes on for ever.
        source, target: addresses without credentials.
        docs_read, docs_written, doc_write_failures: counters over all runs, as of the last checkpoint.
        pending: remaining changes, as far as the source has said; None if unknown, or without a run.
        rate: documents and bytes that the run copies per second, in words; "" if unknown.
        lag: seconds to copy the pending changes at this rate; None if unknown, and while the run stands still.
        is_failing: whether the last run ended with an error, and no other has begun.
        name: the `_id` of the original `_replicator` document; "" without one.
        missing_checked, missing_found: revisions listed by the source, and revisions of these that the target lacked.
        checkpoint: data of the last checkpoint: `start_time` of its run, `update_time`, `source_seq` at its begin,
            `checkpointed_source_seq`, and the number `written` so far; empty before the first.
    """

    continuous: bool
    source: str
    target: str
    docs_read: int
    docs_written: int
    doc_write_failures: int
    pending: int | None
    rate: str
    lag: float | None
    is_failing: bool
    name: str
    missing_checked: int
    missing_found: int
    checkpoint: Mapping[str, Any]

    @classmethod
    def of(cls, job: Job) -> ReplicationStatus | None:
        """Return the status of a replication's job, also with redacted parts; None for a job of another kind.

        Raises:
            RecordDamaged: the job cannot be read.
        """
        data = _fields(job.data)
        if job.type not in (ONE_SHOT, CONTINUOUS) or "options" not in data:
            return None
        options, counted = _fields(data["options"]), _fields(data.get("statistics"))
        if job.state is JobState.FINISHED and isinstance(job.result, dict):
            counted = job.result
        newest = (event.kind for event in job.history[:1])
        said = job.progress if job.state is JobState.RUNNING else None
        pending = None if said is None or said.total is None else max(round(said.total - said.done), 0)
        found = None if said is None else _RATE.match(said.message)
        return cls(
            continuous=bool(options.get("continuous")),
            source=_address(options.get("source")),
            target=_address(options.get("target")),
            docs_read=_count(counted, "docs_read"),
            docs_written=_count(counted, "docs_written"),
            doc_write_failures=_count(counted, "doc_write_failures"),
            pending=pending,
            rate="" if found is None else found[0],
            lag=None if pending is None else _lag(pending, found),
            name=str(data.get("name") or ""),
            missing_checked=_count(counted, "missing_checked"),
            missing_found=_count(counted, "missing_found"),
            checkpoint=_fields(data.get("checkpoint")),
            is_failing=job.outcome is Outcome.FAILED or [*newest] == [HistoryKind.CRASHED],
        )


def progress_message(documents: float, size: float, skipped: int) -> str:
    """Return the message of a run: documents and bytes written per second, and skipped documents."""
    text = f"{documents:,.0f} {_DOCUMENTS}, {size / 1e6:,.1f} MB/s"
    return f"{text}, {skipped:,} skipped" if skipped else text


def _lag(pending: int, found: re.Match[str] | None) -> float | None:
    if pending == 0:
        return 0.0
    rate = 0 if found is None else int(found[1].replace(",", ""))
    return pending / rate if rate else None


def _fields(value: Any) -> dict[str, Any]:
    """Return an object of a job's data; an empty one for a missing or redacted value."""
    return value if isinstance(value, dict) else {}


def _count(counted: dict[str, Any], name: str) -> int:
    value = counted.get(name)
    return value if type(value) is int else 0


def _address(endpoint: Any) -> str:
    return str(endpoint.get("url", "")) if isinstance(endpoint, dict) else str(endpoint or "")


# Asking for replications, and running them


CONTINUOUS_SLOTS: Final = 500
"""Continuous replications that one process runs at the same time: CouchDB's number. Most of them wait for changes."""

_TYPE_TIMEOUT: Final = 60.0
"""Activity timeout of new types before a runner sets one: the handlers' default."""


# Adding


async def replicate(
    jobs: JobsService, source: str | Mapping[str, Any], target: str | Mapping[str, Any], **options: Any
) -> Job:
    """Add a replication as a job. The same replication is one job, however often it is added.

    The new options apply: a running continuous replication is stopped within seconds, and goes on with them from its
    checkpoint. A finished replication, or a running one that has an end, runs once more, from its checkpoint.
    `await jobs.result(job.type, job.id)` waits for the end of a replication that is not continuous.

    Args:
        jobs: the service; it need not run replications itself.
        source, target: URLs, or objects as in `_replicator`. Credentials in them are kept in the store and shown
            nowhere; the program that runs the job resolves `env:NAME`, `file:PATH` and `secret:NAME` in the place of a
            password.
        options: see ReplicationOptions.

    Returns:
        The job.

    Raises:
        InvalidReplication, InvalidEndpoint: an option or an endpoint is invalid.
        StoreError: the store failed.
    """
    return await replicate_as(jobs, ReplicationOptions.from_data({"source": source, "target": target, **options}))


async def replicate_document(jobs: JobsService, document: Any) -> Job:
    """Add the replication in a document of CouchDB's `_replicator`, as `replicate` does.

    Args:
        jobs: the service.
        document: the JSON object.
    """
    return await replicate_as(jobs, ReplicationOptions.from_document(document), str(document.get("_id", "")))


async def replicate_database(
    jobs: JobsService, database: str | Mapping[str, Any]
) -> AsyncIterator[tuple[str, Job | ReplicationError | InvalidReplication]]:
    """Add a replication for each document of a `_replicator` database, except documents that CouchDB has completed.

    Args:
        jobs: the service.
        database: its URL, or an object as in `replicate`.

    Yields:
        The `_id` of each document, with its job, or with the error if it is no valid replication here.

    Raises:
        ReplicationError: the database cannot be read.
    """
    from jobs_service.replication.database import open_database  # needs aiohttp

    opened = await open_database(database, what="database")
    try:
        async for document in opened.all_documents():
            name = str(document["_id"])
            if name.startswith("_design/") or document.get("_replication_state") == "completed":
                continue
            try:
                yield name, await replicate_document(jobs, document)
            except (ReplicationError, InvalidReplication) as error:
                yield name, error
    finally:
        await opened.close()


async def replicate_as(jobs: JobsService, options: ReplicationOptions, name: str = "") -> Job:
    """Add a replication as a job, with a name for display; see `replicate`."""
    type, new = CONTINUOUS if options.continuous else ONE_SHOT, uuid.uuid4().hex

    async def add(tx: JobTransaction) -> Job:
        installation = await installation_id(tx, new)
        # The code of a filter is at the source, which may be away now: the name stands for it in the job's id.
        id = options.id(installation, options.filter)
        await _make_type(tx, type)
        data = {"installation": installation, "options": masked(options), **({"name": name} if name else {})}
        try:
            there = await tx.get(type, id)
        except JobNotFound:
            keep_beside(tx, type, id, options)
            return await tx.add(type, id, data)
        if there.state is JobState.RUNNING:
            await want(tx, there, options)  # its data stays as it is while it runs
            return there if options.continuous else await tx.resubmit(type, id)
        keep_beside(tx, type, id, options)
        return await tx.add(type, id, {**(there.data or {}), **data}, if_exists="resubmit")

    job = await jobs.transact(add)
    await sweep(jobs)
    return job


async def _make_type(tx: JobTransaction, type: str) -> None:
    try:
        await tx.get_type_timeout(type)
    except NoTypeTimeout:
        await tx.set_type_timeout(type, _TYPE_TIMEOUT)


async def replications(jobs: JobsService) -> AsyncIterator[Job]:
    """Yield the jobs of all replications."""
    for type in (ONE_SHOT, CONTINUOUS):
        async for job in jobs.list(type):
            yield job


# Running


def register_replication(
    jobs: JobsService, *, secrets: SecretSource | None = None, **options: Unpack[HandlerKeywords]
) -> None:
    """Let a service's `run` run replications.

    Args:
        jobs: the service.
        secrets: returns the value of `secret:NAME`, given the name; plain or a coroutine function.
        options: options of both handlers, see HandlerOptions; a replication is tried for ever unless `max_attempts` is
            given.

    Raises:
        InvalidSettings: an option outside its range, or a service that runs replications already.
    """
    from jobs_service.replication.job import OptionsWatch, run_replication  # needs aiohttp; adding jobs does not

    given: HandlerKeywords = {"max_attempts": None, **options}
    starts, watch = Starts(), OptionsWatch(jobs)
    takes_turns: HandlerKeywords = {"slots": CONTINUOUS_SLOTS, **given, "continuous": True}
    raised_file_limit()  # each has a connection to its source, and more while documents come

    @jobs.handler(ONE_SHOT, **given)
    async def replicate_once(job: RunningJob) -> dict[str, Any]:
        return await run_replication(jobs, job, secrets, starts, watch)

    @jobs.handler(CONTINUOUS, **takes_turns)
    async def replicate_for_ever(job: RunningJob) -> dict[str, Any]:
        return await run_replication(jobs, job, secrets, starts, watch)


LONGEST: Final = 5.0
"""Longest delay of a run before it begins, in seconds: CouchDB's number."""

FOR_EACH: Final = 0.025
"""Seconds that each other waiting run adds to the longest delay."""


class Starts:
    """The runs of a service that are about to begin."""

    def __init__(self) -> None:
        self._waiting = 0

    def longest_wait(self) -> float:
        """Return the longest delay of the next run in seconds: 0 when it is alone."""
        return min(LONGEST, FOR_EACH * self._waiting)

    async def wait(self) -> None:
        """Wait until a run may begin."""
        seconds = random.uniform(0, self.longest_wait())
        self._waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting -= 1
