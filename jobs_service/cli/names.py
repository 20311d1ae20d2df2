"""Types, ids and priorities as arguments of the command line: each verb accepts the output of the others.

`jobs_service/names.py` describes their syntax.
"""

from __future__ import annotations

from typing import Any

import typer

from jobs_service.names import parsed, parsed_priority


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
