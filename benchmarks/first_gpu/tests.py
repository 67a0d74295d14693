"""`pytest tests/gpu`: a test that crashes or hangs is noted, and the others run all the same.

The parts law_1 and broken_files run some of its files; this part runs the others, the longest last.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import harness
import part

_TEST_SECONDS = 120.0
_SPARE_SECONDS = 15.0
_NO_TESTS = 5
_HERE = Path(__file__).parent
_GPU_TESTS = harness.REPOSITORY / "tests" / "gpu"
LAW_1 = ("test_law_1.py", "test_streams.py")
BROKEN_FILES = (
    "test_cut_files.py",
    "test_damaged_scans.py",
    "test_machine_failures.py",
    "test_any_file.py",
)
_LAST = ("test_bench.py", "test_dtypes.py")


@dataclass
class Outcome:
    """How one test ended: passed, failed, error, skipped, hangs, or "crashed with status N"."""

    outcome: str
    seconds: float = 0.0
    text: str = ""


def others() -> list[str]:
    """The files of tests/gpu that no other part runs, in the order in which they run."""
    elsewhere = {*LAW_1, *BROKEN_FILES, *_LAST}
    names = sorted(path.name for path in _GPU_TESTS.glob("test_*.py"))
    return [*(name for name in names if name not in elsewhere), *_LAST]


def report(name: str, description: str | None, files: Sequence[str]) -> None:
    """Run files of tests/gpu as the part `name`, and end the process."""
    arguments = part.options(description).parse_args()
    part.prepare(arguments)
    os.environ["PYTEST_ADDOPTS"] = "-m gpu"  # without a GPU, those of either device are ordinary
    result = part.Part(name, arguments)
    until = time.monotonic() + float(os.environ.get("PART_SECONDS", "600")) - _SPARE_SECONDS
    log = arguments.out / f"{name}.jsonl"
    outcomes = run([_GPU_TESTS / file for file in files], log, until)
    log.unlink()
    log.with_suffix(".done").unlink()
    counts = Counter(o.outcome.split()[0] for o in outcomes.values())
    result.figures(counts=counts, tests={name: asdict(o) for name, o in outcomes.items()})
    for test, o in outcomes.items():
        if o.outcome not in ("passed", "skipped"):
            result.check(test, False, f"{o.outcome}: {' '.join(o.text.split())[-300:]}")
    result.check("there are tests", bool(outcomes))
    if arguments.device == "gpu":
        unseen = [name for name, o in outcomes.items() if "needs an NVIDIA GPU" in o.text]
        result.check("tests see the GPU", not unseen, f"{len(unseen)} were skipped for want of one")
    result.headline(", ".join(f"{n} {what}" for what, n in counts.items()))
    result.finish()


def run(
    paths: Sequence[Path], log: Path, until: float, test_seconds: float = _TEST_SECONDS
) -> dict[str, Outcome]:
    """The outcome of every test in `paths`, by its node id. until: of time.monotonic()."""
    outcomes: dict[str, Outcome] = {}
    while True:
        log.unlink(missing_ok=True)
        status = _pytest(paths, log, until, test_seconds, list(outcomes))
        found, running = _outcomes(_records(log))
        outcomes |= found
        if time.monotonic() >= until:
            outcomes[running or str(paths[0])] = Outcome("not done in time")
            return outcomes
        if running is None:
            is_told = any(o.outcome == "error" for o in found.values())
            if status not in (0, 1, _NO_TESTS) and not is_told:
                outcomes[str(paths[0])] = Outcome(f"pytest ended with status {status}")
            return outcomes
        outcomes[running] = Outcome("hangs" if status is None else f"crashed with status {status}")


def _pytest(
    paths: Sequence[Path], log: Path, until: float, test_seconds: float, done: Sequence[str]
) -> int | None:
    """Run the tests that are not `done`; the exit status, or None where one hung."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_log"]
    command += ["--continue-on-collection-errors", *map(str, paths)]
    list_of_done = log.with_suffix(".done").absolute()
    list_of_done.write_text("\n".join(done), encoding="utf-8")
    log.touch()
    own = {
        "PYTHONPATH": f"{_HERE}:{os.environ.get('PYTHONPATH', '')}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # whatever else is installed there
        "GPUPIPE_TEST_LOG": str(log.absolute()),
        "GPUPIPE_TESTS_DONE": str(list_of_done),
    }
    process = subprocess.Popen(command, cwd=harness.REPOSITORY, env=os.environ | own)
    while True:
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            is_hanging = time.time() - log.stat().st_mtime > test_seconds
        if is_hanging or time.monotonic() >= until:
            process.kill()
            process.wait()
            return None


def _records(log: Path) -> list[dict[str, str | float]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def _outcomes(records: list[dict[str, str | float]]) -> tuple[dict[str, Outcome], str | None]:
    """Outcomes by test, the worst report of each, and the test that was running at the end."""
    found: dict[str, Outcome] = {}
    running: str | None = None
    for record in records:
        name, outcome = str(record["test"]), str(record["outcome"])
        if outcome in ("started", "finished"):
            running = name if outcome == "started" else None
        elif name not in found or outcome != "passed":
            found[name] = Outcome(outcome, float(record["seconds"]), str(record["text"]))
    if running is not None:
        found.pop(running, None)
    return found, running


if __name__ == "__main__":
    report("tests", __doc__, others())
