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


def looked_at(address: str, *verb: str) -> Ended:
    """Run a verb where the store's directory is mounted read-only."""
    store = directory_of(address)
    command = [*_OWN_MOUNTS, "sh", "-c", READ_ONLY, str(store), *PROGRAM, *verb, "--store", address]
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


def directory_of(address: str) -> Path:
    """Return the directory that has all files of a store."""
    scheme, _, path = address.partition(":")
    return Path(path) if scheme == "lmdb" else Path(path).parent


@pytest.fixture(params=["lmdb:{}/store", "sqlite:{}/store/app.db"], ids=["lmdb", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with a job."""
    made: str = request.param.format(tmp_path)
    for verb in (["types", "set", "email", "60"], ["add", "email", "first"]):
        assert process(*verb, "--store", made, cwd=tmp_path).code == 0
    return made


@pytest.mark.parametrize("locks", ["there", "missing"])
def test_a_store_on_a_read_only_mount_can_be_listed_and_not_changed(address: str, locks: str) -> None:
    store = directory_of(address)
    if locks == "missing":  # as in a backup
        for each in [*store.glob("lock.mdb"), *store.glob("*processes/*")]:
            each.unlink()
        [processes] = store.glob("*processes")
        processes.rmdir()
    [data] = [*store.glob("data.mdb"), *store.glob("app.db")]
    before = data.read_bytes()
    assert "first" in looked_at(address, "list", "email").out
    assert "email" in looked_at(address, "types").out
    ended = looked_at(address, "add", "email", "second")
    assert (ended.code, "is on a read-only file system" in ended.error) == (3, True)
    assert "nothing was written" in ended.error
    assert data.read_bytes() == before


def test_a_store_that_is_in_use_elsewhere_is_refused_on_a_read_only_mount(address: str, tmp_path: Path) -> None:
    with serving("--store", address, cwd=tmp_path):
        ended = looked_at(address, "list", "email")
        assert (ended.code, "is on a read-only mount, and in use" in ended.error) == (3, True)
