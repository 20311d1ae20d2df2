"""A store on a read-only mount: it can be looked at, as long as nobody writes to it elsewhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.support import HANG, PROGRAM, Ended, environment, process, serving

_OWN_MOUNTS = ("unshare", "--mount")
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def _can_mount() -> bool:
    try:
        return subprocess.run([*_OWN_MOUNTS, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not _can_mount(), reason="this user cannot mount anything with unshare(1)")


def looked_at(store: Path, *verb: str) -> Ended:
    """Run a verb where the store's directory is mounted read-only."""
    command = [*_OWN_MOUNTS, "sh", "-c", READ_ONLY, str(store), *PROGRAM, *verb, "--store", f"lmdb:{store}"]
    done = subprocess.run(
        command,
        cwd=store.parent,
        env=environment(),
        capture_output=True,
        timeout=HANG,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a job."""
    path = tmp_path / "store"
    for verb in (["types", "set", "email", "60"], ["add", "email", "first"]):
        assert process(*verb, "--store", f"lmdb:{path}", cwd=tmp_path).code == 0
    return path


@pytest.mark.parametrize("locks", ["there", "missing"])
def test_a_store_on_a_read_only_mount_can_be_listed_and_not_changed(store: Path, locks: str) -> None:
    if locks == "missing":  # as in a backup
        (store / "lock.mdb").unlink()
        for each in (store / "processes").iterdir():
            each.unlink()
        (store / "processes").rmdir()
    before = (store / "data.mdb").read_bytes()
    assert "first" in looked_at(store, "list", "email").out
    assert "email" in looked_at(store, "types").out
    ended = looked_at(store, "add", "email", "second")
    assert (ended.code, "is on a read-only file system: nothing was written" in ended.error) == (3, True)
    assert (store / "data.mdb").read_bytes() == before


def test_a_store_that_is_in_use_elsewhere_is_refused_on_a_read_only_mount(store: Path) -> None:
    with serving("--store", f"lmdb:{store}", cwd=store.parent):
        ended = looked_at(store, "list", "email")
        assert (ended.code, "is on a read-only mount, and in use" in ended.error) == (3, True)
