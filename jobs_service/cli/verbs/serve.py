"""`serve` and `token`: run the daemon, and keep the tokens of its users."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs_service.cli import output, program
from jobs_service.cli.parsing import Level, parse_bytes, parse_type, verb
from jobs_service.names import PREFIX, printable, shown

if TYPE_CHECKING:
    from jobs_service import JobsService
    from jobs_service.cli.daemon import Parent
    from jobs_service.outbox.relays import Relay
    from jobs_service.service.remote import TokenRow

ApplicationArgument = Annotated[
    str | None, typer.Argument(metavar="MODULE:ATTR", help="A JobsService of yours; its store and settings are used.")
]
LevelOption = Annotated[Level, typer.Option("--log-level", help="Log nothing less severe.")]


CommandsOption = Annotated[
    bool,
    typer.Option(
        "--commands", help="Run command jobs too: who can add jobs to the store can then run anything as this user."
    ),
]
ReplicationsOption = Annotated[
    bool, typer.Option("--replications", help="Run replications too; needs the extra `replication`.")
]
OutboxOption = Annotated[
    list[str] | None,
    typer.Option(
        "--outbox",
        metavar="URL",
        envvar="JOBS_SERVICE_OUTBOX",
        help="Move the jobs in this database's outbox into the store: postgresql://... or sqlite:PATH; several times "
        "for several.",
    ),
]
TypesOption = Annotated[
    list[str] | None,
    typer.Option("--types", metavar="A,B", help="Run only the handlers of these types; may be given several times."),
]
MaxJobsOption = Annotated[
    int | None, typer.Option("--max-jobs", metavar="N", min=1, help="Run at most so many jobs at the same time.")
]
ProcessesOption = Annotated[
    int | None,
    typer.Option("--processes", metavar="N", min=1, help="Run so many worker processes, and restart those that end."),
]
JobsPerProcessOption = Annotated[
    int | None,
    typer.Option("--max-jobs-per-process", metavar="N", min=1, help="Replace a worker process after so many jobs."),
]
MemoryPerProcessOption = Annotated[
    str | None,
    typer.Option("--max-memory-per-process", metavar="BYTES", help="Replace one that has so much memory: 500M, 2G."),
]
ReloadOption = Annotated[
    bool, typer.Option("--reload", help="Restart the workers when Python files below this directory change.")
]


HttpOption = Annotated[
    str | None, typer.Option("--http", metavar="HOST:PORT", help="Answer over HTTP there; needs the extra `http`.")
]
ReadOnlyOption = Annotated[bool, typer.Option("--read-only", help="Over HTTP: change nothing.")]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="A host name that requests may name; several times for several."),
]
ProxyOption = Annotated[
    list[str] | None, typer.Option("--proxy", metavar="ADDRESS", help="A proxy whose forwarded headers are believed.")
]
PrefixOption = Annotated[
    str, typer.Option("--http-prefix", metavar="PATH", help="What all paths begin with behind a proxy, as /jobs.")
]
CertificateOption = Annotated[
    str | None, typer.Option("--tls-certificate", metavar="FILE", help="Serve HTTPS with this chain of certificates.")
]
KeyOption = Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its private key.")]
AuditOption = Annotated[
    str | None, typer.Option("--audit-log", metavar="FILE", help="Append who changed what over HTTP.")
]
EnvironmentOption = Annotated[
    str, typer.Option("--environment", metavar="NAME", help="What the pages call this environment.")
]
ColourOption = Annotated[str, typer.Option("--colour", metavar="CSS", help="The colour of that name.")]


def serve(
    context: typer.Context,
    application: ApplicationArgument = None,
    commands: CommandsOption = False,
    replications: ReplicationsOption = False,
    outbox: OutboxOption = None,
    types: TypesOption = None,
    max_jobs: MaxJobsOption = None,
    processes: ProcessesOption = None,
    max_jobs_per_process: JobsPerProcessOption = None,
    max_memory_per_process: MemoryPerProcessOption = None,
    reload: ReloadOption = False,
    http: HttpOption = None,
    read_only: ReadOnlyOption = False,
    allow_host: AllowHostOption = None,
    proxy: ProxyOption = None,
    http_prefix: PrefixOption = "",
    tls_certificate: CertificateOption = None,
    tls_key: KeyOption = None,
    audit_log: AuditOption = None,
    environment: EnvironmentOption = "",
    colour: ColourOption = "",
    log_level: LevelOption = "info",
) -> None:
    """Run handlers and the supervisor tree until SIGTERM.

    It runs the handlers of the application, with --types only some of them. Jobs of all types whose workers are lost
    become pending again, and due jobs ready; without handlers, that is all it does.

    With --processes or --reload, worker processes do that, each with --max-jobs of its own, and this one restarts
    those that end. Another one answers over HTTP.

    With --http it answers programs and browsers, each with a token: whoever starts the daemon has one in the file that
    the event `http_serving` names, others get theirs by `token`.

    After the first signal, running handlers and transactions may end; the jobs of those that do not are given back, and
    the exit code is 0. A second signal exits at once. On SIGHUP the handlers' options are read again from the file that
    JOBS_SERVICE_SETTINGS names. Log events go to stderr: lines for people on a terminal, JSON elsewhere. The event
    `serving` says that it is ready.
    """
    if application is not None:
        program.refuse_store(context, program.own_store(application))
    options = {**context.params, "store": program.chosen_store(context) if application is None else None}
    if processes is None and not reload:
        if max_jobs_per_process is not None or max_memory_per_process is not None:
            raise typer.BadParameter("limits of worker processes need them", param_hint="--processes")
        raise typer.Exit(work(options))
    from jobs_service.cli import daemon
    from jobs_service.cli.logging import configure
    from jobs_service.service.worker_processes import WorkerProcesses

    configure(log_level, sys.stderr.isatty())
    memory = None if max_memory_per_process is None else parse_bytes(max_memory_per_process)
    limits = {"most_jobs": max_jobs_per_process, "most_memory": memory}
    orders = [{"options": {**options, "http": None}, "http": False, **limits}] * (processes or 1)
    if http is not None:
        _require_http()
        # The workers relay the outboxes: whichever has the lock.
        orders.append({"options": {**options, "outbox": None}, "http": True, "most_jobs": None, "most_memory": None})
    raise typer.Exit(daemon.serve_processes(WorkerProcesses(orders, Path.cwd() if reload else None)))


_OF_HTTP = ("read_only", "allow_host", "proxy", "http_prefix", "tls_certificate", "tls_key", "audit_log", "environment")


def work(given: Mapping[str, Any], parent: Parent | None = None) -> int:
    """Serve in this process; return the exit code.

    Args:
        given: the options of `serve`; a missing one has its default.
        parent: the parent of this worker process; None for a daemon by itself.
    """
    from jobs_service import JobsService
    from jobs_service.cli import daemon
    from jobs_service.cli.daemon import load
    from jobs_service.cli.logging import configure

    people = None if parent is None else parent.orders["people"]
    level, application, http = given.get("log_level", "info"), given.get("application"), given.get("http")
    configure(level, people)
    service = JobsService(given.get("store")) if application is None else load(application)
    if parent is not None:
        _require_shared(service)
    if given.get("commands") and not _runs_commands(service):
        service.commands()
    if given.get("replications"):
        _run_replications(service)
    address = None
    if http is not None:
        _require_http()
        from jobs_service.http.server import Address
        from jobs_service.http.state import ServerOptions

        options = ServerOptions(
            allowed_hosts=tuple(given["allow_host"] or ()),
            proxies=tuple(map(_ip_address, given["proxy"] or ())),
            prefix=given["http_prefix"].rstrip("/"),
            **{name: given[name] for name in ("read_only", "commands", "environment", "colour", "audit_log")},
        )
        address = Address(http, options, given["tls_certificate"], given["tls_key"])
    elif parent is None and any(given[name] for name in (*_OF_HTTP, "colour")):
        raise typer.BadParameter("the options about HTTP need it", param_hint="--http")
    # The processes of isolated handlers log as this one does.
    setup = partial(configure, level, sys.stderr.isatty() if people is None else people)
    relays = _relays(service, given.get("outbox"))
    types, max_jobs = _handled(service, given.get("types")), given.get("max_jobs")
    return daemon.serve(daemon.Daemon(service, types, max_jobs, address, relays, parent, setup))


def _relays(service: JobsService, urls: list[str] | None) -> list[Relay]:
    if not urls:
        return []
    from jobs_service.outbox.relays import Relay

    return [Relay(service, url) for url in dict.fromkeys(urls)]


def _require_shared(service: JobsService) -> None:
    """Refuse a store that processes cannot share."""
    if service.store.location.startswith("memory:"):
        raise typer.BadParameter("memory: is of one process; use lmdb:, sqlite: or fdb:", param_hint="--processes")


def _ip_address(text: str) -> str:
    """Return the IP address of a proxy in the form of connections.

    Raises:
        typer.BadParameter: it is a name or a network, from which no connection would ever come.
    """
    try:
        return str(ip_address(text))
    except ValueError:
        raise typer.BadParameter(f"{text!r}: an IP address is needed, as in 10.0.0.5", param_hint="--proxy") from None


def _handled(service: JobsService, names: list[str] | None) -> list[Any] | None:
    """Return the types to run; None for all.

    Raises:
        typer.BadParameter: a type has no handler.
    """
    if not names:
        return None
    # JSON may contain commas.
    parts = [part for name in names for part in ([name] if name.startswith(PREFIX) else name.split(","))]
    types = [parse_type(part) for part in parts if part]
    missing = [type for type in types if type not in service.handlers]
    if missing or not types:
        known = ", ".join(shown(type) for type in service.handlers) or "none"
        what = f"type {shown(missing[0])} has no handler" if missing else "no type is named"
        raise typer.BadParameter(f"{what}; there are: {known}", param_hint="--types")
    return types


def _runs_commands(service: JobsService) -> bool:
    from jobs_service.runner.commands import COMMAND_TYPE

    handler = service.handlers.get(COMMAND_TYPE)
    return handler is not None and handler.kind == "command"


def _require_http() -> None:
    """Check that the packages for HTTP are installed.

    Raises:
        typer.BadParameter: one is missing.
    """
    from importlib.util import find_spec

    if any(find_spec(name) is None for name in ("starlette", "uvicorn", "httptools", "jinja2")):
        raise typer.BadParameter(
            "it needs starlette and uvicorn: pip install 'jobs-service[http]'", param_hint="--http"
        )


def _run_replications(service: JobsService) -> None:
    """Make a service run replications, unless it runs them already.

    Raises:
        typer.BadParameter: a package for it is not installed.
    """
    from importlib.util import find_spec

    from jobs_service.replication import register_replication
    from jobs_service.replication.stored import ONE_SHOT

    if find_spec("aiohttp") is None:
        raise typer.BadParameter(
            "it needs aiohttp: pip install 'jobs-service[replication]'", param_hint="--replications"
        )
    if ONE_SHOT not in service.handlers:
        register_replication(service)


# Tokens


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: letters, digits, - _ . @")]
RoleOption = Annotated[str, typer.Option("--role", metavar="ROLE", help="read, work, write or admin.")]


def token_app() -> typer.Typer:
    """Return the verbs about tokens."""
    app = typer.Typer(help="Tokens for HTTP: who may do what.", no_args_is_help=True)
    verb(app, "add", add)
    verb(app, "list", list_tokens)
    verb(app, "remove", remove)
    return app


def add(context: typer.Context, name: NameArgument, role: RoleOption) -> None:
    """Add a token and print it: only its hash is kept, so nobody can read it later.

    Roles: read looks, work also takes and ends jobs, write also adds, changes and removes them, admin also takes types
    away and may run commands.
    """
    from jobs_service.http.tokens import add_token

    async def body(jobs: JobsService) -> str:
        return await add_token(jobs, name, role)

    token = program.run(context, body, rehearsal=body)
    output.tell(context, {"name": name, "role": role, "token": token}, token)


def list_tokens(context: typer.Context) -> None:
    """List names and roles of tokens, and since when they hold; the tokens themselves nobody knows."""

    async def body(jobs: JobsService) -> list[TokenRow]:
        return await jobs.remote.tokens()

    rows = program.run(context, body)
    if not rows and not output.wants_json(context):
        output.line("no tokens")
    for row in rows:
        created = datetime.fromtimestamp(row.created, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        said = f"{printable(row.role)}, since {created}" if row.role else "cannot be read: it lets nobody in, remove it"
        output.tell(context, {"name": row.name, "role": row.role, "created": created}, f"{printable(row.name)}: {said}")


def remove(context: typer.Context, name: NameArgument) -> None:
    """Take a token away: that holds at once, also for open streams of events and for those who have logged in."""

    async def body(jobs: JobsService) -> None:
        await jobs.remote.remove_token(name)

    program.run(context, body)
    output.tell(context, {"name": name}, f"the token {name} holds no longer")
