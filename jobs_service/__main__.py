"""`python -m jobs_service` is `jobs-service`."""

from __future__ import annotations

import sys

from jobs_service.cli import main

if __name__ == "__main__":
    sys.exit(main())
