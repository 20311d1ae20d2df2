"""The command line: parses arguments, calls the service, prints the result.

Heavy imports wait until a verb needs them, so that `jobs-service --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        arguments: the arguments without the program's name; None takes them from sys.argv.

    Returns:
        The exit code: 0 done, 1 the answer is no, 2 wrong usage or bad input, 3 the store cannot be used, 70 a bug,
        74 the output cannot be written, 130 after Ctrl-C, 141 the reader of the output is gone, 143 after SIGTERM.
    """
    try:
        from jobs_service.cli.app import run

        return run(arguments)
    except KeyboardInterrupt:
        return 130
