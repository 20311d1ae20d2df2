"""`pause` and `resume`: stop and restart the taking of a type's jobs, in all processes."""

from __future__ import annotations

import typer

from jobs_service import json_forms
from jobs_service.cli import output, session
from jobs_service.cli.names import parse_type
from jobs_service.cli.options import JsonOption, StoreOption, TypeArgument
from jobs_service.cli.type_checks import change_type
from jobs_service.names import shown


def pause(context: typer.Context, type: TypeArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Let no worker take jobs of a type until it is resumed.

    This holds in all processes, also in those that are started later. Jobs that run go on; new ones may be added.
    """
    name = parse_type(type)
    session.run(context, store, lambda jobs: change_type(jobs, name, lambda tx: tx.pause(name)))
    if as_json:
        output.json_line({"type": json_forms.name(name), "paused": True})
    else:
        output.line(f"type {shown(name)}: paused; jobs that run go on, and no others begin")


def resume(context: typer.Context, type: TypeArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Let workers take the jobs of a paused type again."""
    name = parse_type(type)
    session.run(context, store, lambda jobs: change_type(jobs, name, lambda tx: tx.resume(name)))
    if as_json:
        output.json_line({"type": json_forms.name(name), "paused": False})
    else:
        output.line(f"type {shown(name)}: its jobs are taken again")
