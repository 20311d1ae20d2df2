"""`replicate` and `replications`: replicate CouchDB databases as jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from jobs_service import json_data, names
from jobs_service.cli import output, parsing, program
from jobs_service.cli.output import Column
from jobs_service.cli.terminal import Bar
from jobs_service.cli.verbs.submit import TimeoutOption, wait_limit, wait_option, waiting_for
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobs_service import Job, JobEvent, JobsService
    from jobs_service.replication.options import ReplicationOptions
    from jobs_service.replication.stored import ReplicationStatus

SourceArgument = Annotated[
    str | None, typer.Argument(metavar="SOURCE", help="URL of the database to copy: http://host:5984/name.")
]
TargetArgument = Annotated[str | None, typer.Argument(metavar="TARGET", help="URL of the database to copy to.")]
DocumentOption = Annotated[
    str | None,
    typer.Option("--from-document", metavar="FILE|-", help="Take everything from a document of CouchDB's _replicator."),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option("--from-database", metavar="URL", help="Take over all documents of a _replicator database."),
]
ContinuousOption = Annotated[bool, typer.Option("--continuous", help="Go on for ever with what changes.")]
CreateOption = Annotated[bool, typer.Option("--create-target", help="Create the target where it is missing.")]
FilterOption = Annotated[
    str | None, typer.Option("--filter", metavar="DESIGN/NAME", help="Copy what a filter of the source lets through.")
]
DocIdOption = Annotated[
    list[str] | None, typer.Option("--doc-id", metavar="ID", help="Copy this document; may be given several times.")
]
SelectorOption = Annotated[
    str | None, typer.Option("--selector", metavar="JSON", help="Copy the documents that match a selector.")
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Fail when the target refuses a document for good, instead of going past it.")
]
MissingOption = Annotated[
    bool, typer.Option("--fail-if-missing", help="Fail when a database is not there, instead of trying for ever.")
]
WaitOption = Annotated[bool, wait_option(", with its progress.")]


class _Row(NamedTuple):
    job: Job
    found: ReplicationStatus | None


def _note(row: _Row) -> str:
    said, error = row.job.progress, row.job.error
    if said is not None and row.job.state == "running":
        return printable(said.message)
    return "" if error is None else output.error_text(error)


def _shown(name: str, show: Callable[[Any], str] = printable, **options: Any) -> Column:
    """Return the column of a field of the status; it is empty if the field is not known."""

    def of(row: _Row) -> str:
        value = getattr(row.found, name, None)
        return "" if value is None else show(value)

    return Column(options.pop("called", name), of, **options)


COLUMNS = (
    Column("id", lambda row: shown(row.job.id), whole=True),
    _shown("name"),
    Column("status", lambda row: output.status_text(row.job), status=True),
    _shown("continuous", lambda continuous: "continuous" if continuous else "once", called="kind"),
    _shown("docs_written", "{:,}".format, called="written", right=True),
    _shown("doc_write_failures", "{:,}".format, called="skipped", right=True, nothing="0"),
    _shown("pending", "{:,.0f}".format, right=True),
    _shown("lag", output.duration_text, right=True),
    _shown("source"),
    _shown("target"),
    Column("note", _note, cut=True),
)


def replicate(
    context: typer.Context,
    source: SourceArgument = None,
    target: TargetArgument = None,
    document: DocumentOption = None,
    database: DatabaseOption = None,
    continuous: ContinuousOption = False,
    create_target: CreateOption = False,
    filter: FilterOption = None,
    doc_ids: DocIdOption = None,
    selector: SelectorOption = None,
    strict: StrictOption = False,
    fail_if_missing: MissingOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
) -> None:
    """Copy a CouchDB database to another one, as a job.

    Prints the job's id. A daemon that was started with `serve --replications` runs it. The same replication is one
    job, which goes on from its checkpoint whenever it is asked for again. A password in an address is shown nowhere
    again; env:NAME and file:PATH in its place name one that the daemon knows. With --wait the exit code is 0 when
    everything has been copied, and 1 when it has failed.
    """
    seconds = wait_limit(wait, timeout)
    given: dict[str, Any] = {
        "continuous": continuous,
        "create_target": create_target,
        "filter": filter,
        "doc_ids": tuple(doc_ids) if doc_ids else None,
        "selector": None if selector is None else _json(selector, "--selector"),
        "strict": strict,
        "on_missing": "fail" if fail_if_missing else "retry",
    }
    if document is not None or database is not None:
        # Options beside a document that describes the replication would be ignored.
        words = {
            "SOURCE": source,
            "TARGET": target,
            "--continuous": continuous,
            "--create-target": create_target,
            "--filter": filter,
            "--doc-id": doc_ids,
            "--selector": selector,
            "--strict": strict,
            "--fail-if-missing": fail_if_missing,
        }
        hint = "--from-database"
        if document is not None:
            words, hint = {**words, "--from-database": database}, "--from-document"
        elif database is not None:
            words |= {"--wait": wait}
        if beside := [word for word, value in words.items() if value not in (None, False, [])]:
            raise typer.BadParameter(f"it says everything; leave out {', '.join(beside)}", param_hint=hint)
    if database is not None:
        _take_over(context, database)
        return
    options, name = _options(source, target, document, given)
    if wait and options.continuous:
        how = "--continuous" if document is None else '"continuous" of the document'
        raise typer.BadParameter(f"it never ends; leave --wait or {how} out", param_hint="--wait")

    async def add(jobs: JobsService) -> Job:
        from jobs_service.replication.stored import replicate_as

        return await replicate_as(jobs, options, name)

    async def body(jobs: JobsService) -> Job | JobEvent:
        job = await add(jobs)
        if wait:
            return await output.without_in_changed(jobs, await _end_of(jobs, job, seconds))
        return await output.without_in_changed(jobs, job)

    found = program.run(context, body, rehearsal=add, supervise=wait)
    if wait and not output.wants_json(context):
        _print_result(found)
    else:
        output.tell(context, found.to_dict(), shown(found.id))
    if wait and found.outcome != "succeeded":
        why = "" if found.error is None else f": {output.error_text(found.error)}"
        raise program.AnswerIsNo(f"the replication {output.status_text(found)}{why}")


def replications(context: typer.Context) -> None:
    """Show all replications: what they do, how far they are.

    Pending are the changes that are still to come, as far as the source says; the note is a job's rate, or why it
    failed last.
    """

    async def body(jobs: JobsService) -> list[_Row]:
        from jobs_service.replication import stored
        from jobs_service.replication.stored import ReplicationStatus

        shown = [await output.without(jobs, job) async for job in stored.replications(jobs)]
        return [_Row(job, ReplicationStatus.of(job)) for job in shown]

    output.rows(context, COLUMNS, program.run(context, body), _form, "there are no replications")


def _take_over(context: typer.Context, database: str) -> None:
    from importlib.util import find_spec

    if find_spec("aiohttp") is None:
        raise typer.BadParameter(
            "it needs aiohttp: pip install 'jobs-service[replication]'", param_hint="--from-database"
        )
    from jobs_service import JobsError
    from jobs_service.replication.contract import ReplicationError
    from jobs_service.replication.stored import replicate_database

    async def body(jobs: JobsService) -> list[tuple[str, Job | JobsError]]:
        return [each async for each in replicate_database(jobs, database)]

    try:
        found = program.run(context, body)
    except ReplicationError as error:
        raise program.Refused(str(error)) from None
    refused = 0
    for name, job in found:
        if isinstance(job, JobsError):
            refused += 1
            program.say(f"{printable(name)}: {job}")
        else:
            output.tell(context, job.to_dict(), f"{shown(job.id)}  {printable(name)}")
    if refused:
        raise program.AnswerIsNo(f"{refused} of {len(found)} documents were not taken over")


def _options(
    source: str | None, target: str | None, document: str | None, given: dict[str, Any]
) -> tuple[ReplicationOptions, str]:
    """Return the options, and the name of the document; "" without one."""
    from jobs_service.replication.contract import InvalidEndpoint
    from jobs_service.replication.options import InvalidReplication, ReplicationOptions

    name = ""
    try:
        if document is not None:
            form = _json(parsing.text_of(document, "--from-document"), "--from-document")
            options = ReplicationOptions.from_document(form)
            name = str(form.get("_id", ""))
        elif source is None or target is None:
            raise typer.BadParameter("name SOURCE and TARGET, or a document with --from-document")
        else:
            options = ReplicationOptions.from_data({"source": source, "target": target, **given})
        options.id("", None)  # finds errors in the addresses
        return options, name
    except (InvalidReplication, InvalidEndpoint) as error:
        raise typer.BadParameter(str(error)) from None


def _json(text: str, name: str) -> Any:
    try:
        return json_data.parsed(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None


async def _end_of(jobs: JobsService, job: Job, seconds: float | None) -> JobEvent:
    waiting = waiting_for(jobs, job, seconds, "serve --replications")
    async with waiting, program.while_read(), jobs.subscribe(job.type, job.id) as events:
        with Bar() as bar:
            async for event in events:
                bar.show_job(await output.without(jobs, event))
    if event.state == "removed":
        raise program.AnswerIsNo(f"{output.name(job.type, job.id)} was removed before it finished")
    return event


def _print_result(event: Job | JobEvent) -> None:
    if event.outcome != "succeeded":
        return
    result = {} if event.result is None else event.result
    if not isinstance(result, dict):
        output.line("done; the number of written documents cannot be shown now")
    elif result.get("no_changes"):
        output.line("no changes")
    else:
        output.line(f"{output.many(int(result.get('docs_written', 0)), 'document')} written")
        for skipped in result.get("skipped", ()):
            why = skipped.get("reason") or skipped.get("error")
            program.say(f"skipped: {skipped.get('id')!r}, revision {skipped.get('rev')}: {why}")


def _form(row: _Row) -> dict[str, Any]:
    from dataclasses import asdict, fields

    from jobs_service.json_types import plain
    from jobs_service.replication.stored import ReplicationStatus

    job, found = row
    return {
        "id": names.name(job.id),
        "type": names.name(job.type),
        "status": output.status_text(job),
        **(dict.fromkeys(each.name for each in fields(ReplicationStatus)) if found is None else asdict(found)),
        "progress": None if job.progress is None else plain(job.progress),
        "error": names.error(job.error),
    }
