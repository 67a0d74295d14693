"""Runs tests in copies of the working tree, whose files may be changed.

`python tests/helpers/tree_copies.py RESULT ARGUMENT...` is pytest with these arguments, in a copy:
PYTHONPATH names the copy, and so stands before the editable installation. What tests start with
another environment or in isolated mode takes the code of the installation.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_OPTIONS = ["-q", "-p", "no:cacheprovider", "-o", "faulthandler_exit_on_timeout=true"]
_HOURS = 3600.0


@dataclass(frozen=True)
class Result:
    """What became of a run of tests.

    Attributes:
        failed: Tests that failed, and files that could not be imported.
        passed: How many passed.
        status: The exit status of pytest; None if it was ended because it took too long.
        seconds: How long it took.
    """

    failed: list[str]
    passed: int
    status: int | None
    seconds: float

    @property
    def caught_by(self) -> str:
        """What says that the code is wrong; "" if nothing does."""
        if self.status is None:
            return f"the time limit, after {self.seconds} s"
        crash = f"exit status {self.status}" if self.status else ""
        return self.failed[0] if self.failed else crash


class TreeCopy:
    """A copy of the files that git knows or does not ignore, and of the compiled extensions.

    Args:
        folder: Where it is made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        names = [name for name in listed.stdout.decode().split("\0") if name]
        names += [str(path.relative_to(ROOT)) for path in ROOT.glob("gpupipe/*.so")]
        for name in names:
            if (ROOT / name).is_file():
                (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
                self.restore(name)

    def write(self, file: str, text: str) -> None:
        """Change a file."""
        (self._folder / file).write_text(text)

    def restore(self, file: str) -> None:
        """Copy a file again, with its time of change, by which Python knows its compiled files."""
        shutil.copy2(ROOT / file, self._folder / file)

    def run(
        self,
        tests: Sequence[str],
        *options: str,
        env: Mapping[str, str],
        seconds: float = 4 * _HOURS,
    ) -> Result:
        """Run tests with pytest, and end them after some seconds."""
        result, listed = self._folder / ".result.json", self._folder / ".tests.txt"
        result.unlink(missing_ok=True)
        listed.write_text("\n".join(tests))
        command = [sys.executable, "tests/helpers/tree_copies.py", str(result), *_OPTIONS, *options]
        start = time.monotonic()
        with open(self._folder / ".output.txt", "w") as output:
            process = subprocess.Popen(
                [*command, f"@{listed}"],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(self._folder), **env},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            status = _wait(process, seconds)
        report = json.loads(result.read_text()) if result.exists() else vars(Report())
        return Result(**report, status=status, seconds=round(time.monotonic() - start, 1))


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return its exit status, None if it took too long. Nothing of its session is left."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Report:
    """A plugin of pytest that keeps which tests failed, and how many passed."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)


def main(result: str, arguments: list[str]) -> int:
    del sys.path[0]  # this folder
    spec = importlib.util.find_spec("gpupipe")
    origin = Path("gpupipe/__init__.py").resolve()
    assert spec is not None and spec.origin == str(origin), f"{spec} is not {origin}"
    report = Report()
    status = pytest.main(arguments, plugins=[report])
    Path(result).write_text(json.dumps(vars(report)))
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
