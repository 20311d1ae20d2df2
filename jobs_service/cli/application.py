"""Loads the service of a user's application by its name MODULE:ATTR."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from jobs_service import JobsService

HINT = "MODULE:ATTR"


def load(name: str) -> JobsService:
    """Import a module, from the working directory first, and return the service in it.

    If the module raises, the traceback is printed without frames of installed code, and the error names it in one line.

    Args:
        name: `package.module:attribute`, or `package.module:object.attribute`.

    Raises:
        typer.BadParameter: there is no such module or attribute, or it is not a JobsService.
    """
    from jobs_service import JobsService
    from jobs_service.errors import a_kind_of

    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise typer.BadParameter(f"{name!r}; write it like package.module:jobs", param_hint=HINT)
    found: Any = _import(module_name)
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise typer.BadParameter(f"module {module_name} has no {path}", param_hint=HINT) from None
    if not isinstance(found, JobsService):
        raise typer.BadParameter(f"{name} is {a_kind_of(found)}, not a JobsService", param_hint=HINT)
    return found


def _import(name: str) -> Any:
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise typer.BadParameter(f"there is no module {name}", param_hint=HINT) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # Any error in the user's code is shown to the user.
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> typer.BadParameter:
    from jobs_service.cli.tracebacks import place, print_traceback, summary

    print_traceback(error)
    return typer.BadParameter(f"importing {name} failed at {place(error)}: {summary(error)}", param_hint=HINT)
