"""The server's own token, in a file that only its user can read, at a place known to that user's programs.

A server makes another token at each start. So a program that listens at the port after the server's end, and is sent
the token by mistake, cannot use it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from jobs_service.log import EventLog

log = EventLog("jobs_service.http")

_USUAL: Final = "127.0.0.1"
"""The address whose files are named by the port alone."""


def path_of(host: str, port: int) -> Path:
    """Return the token file of the server at an address of this machine.

    Another user may listen at the same port of another loopback address, so each address has its own file.

    Args:
        host: an IP address; the IPv4 wildcard stands for 127.0.0.1, the IPv6 wildcard for ::1.
        port: of the server.

    Raises:
        RuntimeError: this user has no home directory.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    address = {"0.0.0.0": _USUAL, "::": "::1"}.get(host, host)
    return base / "jobs-service" / (f"{port}.token" if address == _USUAL else f"{address}-{port}.token")


@contextmanager
def kept(host: str, port: int, token: str) -> Iterator[Path | None]:
    """Keep a token in an address's file while the block runs, and yield the file; None if it cannot be written.

    Args:
        host, port: of the server.
        token: the server's own.
    """
    try:
        path = _written(path_of(host, port), token)
    except (OSError, RuntimeError) as error:
        log.warning("token_file_failed", port=port, error=str(error))
        path = None
    try:
        yield path
    finally:
        # Another server may have come to the port meanwhile.
        if path is not None and _read(path) == token:
            with contextlib.suppress(OSError):
                path.unlink()


def found(url: str) -> str | None:
    """Return the token of the server at a URL; None if it is on another machine, or not started by this user.

    Args:
        url: `http://HOST:PORT` or `https://...`.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if not is_loopback(host):
        return None
    try:
        # The first address of a name, which clients try first.
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
        return _read(path_of(str(address), port))
    except (RuntimeError, OSError):
        return None


def is_loopback(host: str) -> bool:
    """Return whether a host, without its port, is a loopback address: not reachable from another machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _written(path: Path, token: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "w") as written:
            written.write(token + "\n")
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    return path


def _read(path: Path) -> str | None:
    try:
        return path.read_text("ascii").strip() or None
    except (OSError, ValueError):
        return None
