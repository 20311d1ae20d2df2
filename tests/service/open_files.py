"""The files that a process has open."""

from __future__ import annotations

import os


def open_files() -> set[str]:
    """Return the regular files that the process has open.

    Those of clusters are left out: the thread of FoundationDB's client opens them now and then, whoever uses it.
    """
    found = set()
    for descriptor in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith("/") and not target.startswith(("/dev/", "/proc/")) and not target.endswith(".cluster"):
            found.add(target)
    return found
