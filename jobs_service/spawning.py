"""Python processes that this package starts for its own work, and the words for the ends of processes."""

from __future__ import annotations

import signal
import sys
import types
from pathlib import Path

from jobs_service.errors import InvalidSettings


def python(entry: str, descriptor: int) -> list[str]:
    """Return the command of a Python process that calls a function of this package.

    Args:
        entry: module and name of the function, as "module:function".
        descriptor: its argument: an inherited file descriptor.
    """
    module, _, function = entry.partition(":")
    root = str(Path(__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {root!r}); from {module} import {function}; {function}({descriptor})"
    return [sys.executable, "-P", "-c", code]


def ended_how(code: int) -> str:
    """Return the words for a process's exit code, which is negative for a signal."""
    return f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def module_name(module: types.ModuleType) -> str:
    """Return the name by which another process imports a module; of the program itself, the name of its file.

    Raises:
        InvalidSettings: the program is no file that can be imported.
    """
    if module.__name__ != "__main__":
        return module.__name__
    if (spec := getattr(module, "__spec__", None)) is not None:
        return str(spec.name)
    file = Path(getattr(module, "__file__", None) or "")
    if file.suffix != ".py":
        raise InvalidSettings("the program has no file whose name ends with .py, which another process could import")
    return file.stem
