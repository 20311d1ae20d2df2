"""Running the examples of pages that are parts of programs."""

from __future__ import annotations

import ast
import inspect
from typing import Any


async def run(example: str, **names: Any) -> dict[str, Any]:
    """Run an example as the body of a coroutine; return the names that it had and made."""
    code = compile(example, "an example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        await result
    return names
