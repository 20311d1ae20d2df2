"""`python -m jobs_service` is `jobs-service`. Floor: the command line."""

from __future__ import annotations

import sys

from jobs_service.cli import main

if __name__ == "__main__":
    sys.exit(main())
