"""What of the tests of HTTP needs tools that may be missing."""

from __future__ import annotations

from importlib.util import find_spec

# Beside the lowest releases that the package takes, `scripts/test --long lowest` cannot install it.
collect_ignore = [] if find_spec("schemathesis") else ["test_openapi.py"]
