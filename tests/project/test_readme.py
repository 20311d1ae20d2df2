"""The README's programs and commands do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def _run(program: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_ten_lines_run_as_they_are(tmp_path: Path) -> None:
    assert _run(BLOCKS[0], tmp_path) == "sending to ada@example.org\nfinished\n"
    assert (tmp_path / "jobs-data" / "data.mdb").exists()


def test_the_ten_lines_run_again_on_the_store_they_left(tmp_path: Path) -> None:
    _run(BLOCKS[0], tmp_path)
    assert _run(BLOCKS[0], tmp_path).endswith("finished\n")
