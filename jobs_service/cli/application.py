"""Loads the service of a user's application by its name MODULE:ATTR, and shows errors in it by the user's frames."""

from __future__ import annotations

import importlib
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from jobs_service.names import one_line, printable

if TYPE_CHECKING:
    from jobs_service import JobsService

HINT = "MODULE:ATTR"
_OURS: Final = str(Path(__file__).parents[1])
_MOST: Final = 200


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
    if not (module_name and colon and path) or module_name.startswith("."):
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
    _print_traceback(error)
    said = one_line(f"{type(error).__name__}: {error}".removesuffix(": "), _MOST)
    return typer.BadParameter(f"importing {name} failed at {_place(error)}: {said}", param_hint=HINT)


def _print_traceback(error: BaseException) -> None:
    """Print an error's traceback on stderr, without frames of installed packages, of Python and of this package."""
    described = traceback.TracebackException.from_exception(error)
    for each in _with_causes(described):
        # Code that cannot be compiled has not run; the error itself names its line.
        each.stack[:] = [] if isinstance(error, SyntaxError) else _of_the_user(each.stack)
    for part in described.format():
        for line in part.rstrip("\n").split("\n"):
            print(printable(line), file=sys.stderr)
    sys.stderr.flush()


def _place(error: BaseException) -> str:
    """Return the file and line of the user's code that raised an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = _of_the_user(traceback.extract_tb(error.__traceback__))
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def _with_causes(described: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield described
    for other in (described.__cause__, described.__context__, *(described.exceptions or ())):
        if other is not None:
            yield from _with_causes(other)


def _of_the_user(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the frames of the user's own files; if there are none, the frames of libraries."""
    paths = (*site.getsitepackages(), sysconfig.get_paths()["stdlib"])
    called = [frame for frame in frames if not frame.filename.startswith(("<", _OURS))]
    return [frame for frame in called if not frame.filename.startswith(paths)] or called
