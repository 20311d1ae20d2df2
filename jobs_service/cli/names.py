"""Types, ids and priorities as arguments of the command line: each verb accepts the output of the others.

`jobs_service/names.py` describes their syntax.
"""

from __future__ import annotations

from typing import Any

import typer

from jobs_service.names import PREFIX as PREFIX
from jobs_service.names import compact as compact
from jobs_service.names import parsed as parsed
from jobs_service.names import parsed_priority
from jobs_service.names import printable as printable
from jobs_service.names import priority_text as priority_text
from jobs_service.names import shown as shown


def parse_type(text: str) -> Any:
    """Return the job type that an argument stands for.

    Raises:
        typer.BadParameter: it is not a type.
    """
    return _argument(text, "TYPE")


def parse_id(text: str) -> Any:
    """Return the job id that an argument stands for.

    Raises:
        typer.BadParameter: it is not an id.
    """
    return _argument(text, "ID")


def parse_priority(text: str) -> Any:
    """Return the priority that an option stands for, as `parsed_priority` does.

    Raises:
        typer.BadParameter: it is not a priority.
    """
    try:
        return parsed_priority(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--priority") from None


def _argument(text: str, name: str) -> Any:
    try:
        return parsed(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None
