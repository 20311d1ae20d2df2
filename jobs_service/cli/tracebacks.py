"""Shows errors in the user's code, with the frames of that code only."""

from __future__ import annotations

import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from jobs_service.names import printable

_OURS = str(Path(__file__).parents[1])
_MOST = 200


def print_traceback(error: BaseException) -> None:
    """Print an error's traceback on stderr, without frames of installed packages, of Python and of this package."""
    described = traceback.TracebackException.from_exception(error)
    for each in _with_causes(described):
        # Code that cannot be compiled has not run; the error itself names its line.
        each.stack[:] = [] if isinstance(error, SyntaxError) else _of_the_user(each.stack)
    for part in described.format():
        for line in part.rstrip("\n").split("\n"):
            print(printable(line), file=sys.stderr)
    sys.stderr.flush()


def place(error: BaseException) -> str:
    """Return the file and line of the user's code that raised an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = _of_the_user(traceback.extract_tb(error.__traceback__))
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def summary(error: BaseException) -> str:
    """Return the class and message of an error on one line of limited length."""
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


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
