"""Mutants: do the tests notice a small mistake in the code, and does the short suite lose any?

    python tests/mutants.py run --seed 1 --count 30 --jobs 2 mutants.json
    python tests/mutants.py survivors mutants.json

`run` draws mutants over all folders of gpupipe/, in proportion to their lines. Each is a change of
one line (tests/helpers/mutations.py) in a copy of the tree. It runs the tests of its module (at
most ten files, see tests/helpers/mirror.py) and the laws, up to the first test that fails. A module
that cannot be imported and tests that take ten times as long count as caught.

`survivors` applies all mutants that no test caught to one copy, and runs there the short suite, and
then the full product of cases (GPUPIPE_TEST_ALL=1), both without Ray. Of the full product it runs
the files that depend on that variable: the others are the same in both. Each test that fails there
and passes on the unchanged tree then runs against each survivor alone: so it is known which it
catches.

That needs two runs of the suites in place of two for each survivor. It is sound because a mutant
that breaks everything, and would hide the others, is caught by the tests of its own module or by
the laws, and does not survive. Two survivors may still hide each other. A test that fails on all
together and on none alone is printed.

The unchanged tree is a copy too: nothing is written to the working tree.
"""

import argparse
import json
import queue
import random
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from helpers import mirror, mutations
from helpers.mirror import ROOT
from helpers.mutations import Mutation
from helpers.tree_copies import Result, TreeCopy

LAWS = "tests/test_laws.py"
MAX_FILES = 10
TIMES_LONGER, MIN_SECONDS = 10, 60
ALONE = ["-n", "0"]
SUITES = {"short": {"GPUPIPE_TEST_ALL": ""}, "full": {"GPUPIPE_TEST_ALL": "1"}}
KERNELS_OFF = {"GPUPIPE_KERNELS": "off"}
TESTS_WITHOUT_KERNELS = [
    f"tests/engines/cpu/test_{name}.py" for name in ("engine", "delivery", "lowering")
]
RAY_TESTS = (
    *("tests/engines/ray", "tests/engines/test_unequal_shapes.py"),
    *("tests/test_laws_of_annotations.py", "tests/test_ray.py", "tests/training/test_ray_train.py"),
)
RAY = threading.Lock()
"""A second Ray on a machine joins the first: tests that start Ray run one by one."""
Mutant = dict[str, Any]
"""An entry of the results: "file", "mutation", and what was found."""


def draw_mutants(seed: int, count: int) -> list[Mutant]:
    """Draw mutants at even distances over the lines of all modules, so each folder has its share.

    In a module the kind of the change is drawn first, so that rare kinds come too.
    """
    dice = random.Random(seed)
    sources = {module: (ROOT / module).read_text() for module in mirror.list_modules()}
    lines = {module: sum(map(bool, text.split("\n"))) for module, text in sources.items()}
    step = sum(lines.values()) / count
    mutants: list[Mutant] = []
    next_point, end = dice.random() * step, 0
    for module, text in sources.items():
        end += lines[module]
        left = mutations.find_mutations(text) if next_point < end else []
        while next_point < end and left:
            kind = dice.choice(sorted({mutation.operator for mutation in left}))
            drawn = dice.choice([mutation for mutation in left if mutation.operator == kind])
            if mutations.is_mutant(text, drawn):
                left = [mutation for mutation in left if mutation.line != drawn.line]
                mutants.append({"file": str(module), "mutation": asdict(drawn)})
                next_point += step
            else:
                left.remove(drawn)
    return mutants


@contextmanager
def mutated(copy: TreeCopy, mutants: Sequence[Mutant]) -> Iterator[None]:
    """Apply mutants to a copy, and take them back at the end."""
    files = {mutant["file"] for mutant in mutants}
    try:
        for file in files:
            chosen = [Mutation(**m["mutation"]) for m in mutants if m["file"] == file]
            copy.write(file, mutations.apply((ROOT / file).read_text(), chosen))
        yield
    finally:
        for file in files:
            copy.restore(file)


class FirstPhase:
    """Runs mutants against the tests of their modules and the laws.

    Args:
        copies: Copies of the tree, one a thread.
        out: The file of the results, written after each mutant.
        mutants: All that were drawn.
    """

    def __init__(self, copies: Sequence[TreeCopy], out: Path, mutants: list[Mutant]) -> None:
        self._mutants, self._out, self._lock = mutants, out, threading.Lock()
        self._free: queue.Queue[TreeCopy] = queue.Queue()
        for copy in copies:
            self._free.put(copy)
        self._laws = copies[0].run([LAWS], *ALONE, env=SUITES["short"])

    def try_mutant(self, mutant: Mutant) -> None:
        """Write into the mutant what caught it; "" if nothing did."""
        copy = self._free.get()
        try:
            tests = choose_tests(Path(mutant["file"]))
            with RAY if needs_ray(mutant["file"]) else nullcontext():
                self._try(mutant, copy, tests)
        finally:
            self._free.put(copy)
        print_row(mutant, mutant["mirrored"] or "survived", f"{mutant['seconds']} s")

    def _try(self, mutant: Mutant, copy: TreeCopy, tests: list[str]) -> None:
        env = SUITES["short"]
        own = copy.run(tests, *ALONE, env=env) if tests else Result([], 0, 0, 0.0)
        runs = own.status in (0, 1, pytest.ExitCode.NO_TESTS_COLLECTED)
        assert runs, f"{tests} do not run on the unchanged tree: {own.caught_by}"
        limit = max(MIN_SECONDS, TIMES_LONGER * (own.seconds + self._laws.seconds))
        failing = [f"--deselect={test}" for test in own.failed + self._laws.failed]
        with mutated(copy, [mutant]):
            result = copy.run([*tests, LAWS], "-x", *ALONE, *failing, env=env, seconds=limit)
        with self._lock:
            mutant |= {"tests": tests, "mirrored": result.caught_by, "seconds": result.seconds}
            mutant["needs"] = what_it_needs(mutant, own)
            self._out.write_text(json.dumps(self._mutants, indent=1))


def choose_tests(module: Path) -> list[str]:
    """Return the tests of a module; those that name it most often, if they are many."""
    word = re.compile(rf"\b{module.stem}\b")
    tests = mirror.find_tests(module)
    counts = {test: len(word.findall((ROOT / test).read_text())) for test in tests}
    return [str(test) for test in sorted(tests, key=lambda test: -counts[test])[:MAX_FILES]]


def needs_ray(file: str) -> bool:
    return "ray" in re.split(r"[/._]", file)


def what_it_needs(mutant: Mutant, own: Result) -> str:
    """Return what a mutant needs that is not there, or may not be; "" if nothing.

    Args:
        mutant: The mutant.
        own: How the tests of its module ran on the unchanged tree.
    """
    if needs_ray(mutant["file"]):
        return "Ray, which the suites leave out"
    if own.passed == 0:
        return "tests of its own, or what they need: none runs here"
    words = mutant["file"].removeprefix("gpupipe/") + mutant["mutation"]["shown"]
    return "a GPU, by its words" if re.search("gpu|cuda|nvml", words, re.I) else ""


def run(out: Path, seed: int, count: int, jobs: int) -> None:
    """Run the first phase."""
    mutants = draw_mutants(seed, count)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        phase = FirstPhase([TreeCopy(Path(folder, str(n))) for n in range(jobs)], out, mutants)
        list(pool.map(phase.try_mutant, mutants))
    survived = sum(not mutant["mirrored"] for mutant in mutants)
    print(f"{survived} of {len(mutants)} survived")


def try_survivors(out: Path, jobs: int, tests: list[str] | None) -> None:
    """Run the second phase. tests: these alone, and not the two suites."""
    mutants = json.loads(out.read_text())
    survivors = [mutant for mutant in mutants if mutant.get("mirrored") == ""]
    for mutant in survivors:
        all_of_file = mutations.find_mutations((ROOT / mutant["file"]).read_text())
        assert Mutation(**mutant["mutation"]) in all_of_file, f"{mutant['file']} is another now"
        mutant.update(dict.fromkeys(SUITES, ""))
    with tempfile.TemporaryDirectory() as folder:
        copy = TreeCopy(Path(folder))
        for suite, env in SUITES.items() if survivors else []:
            all_of_suite = ["tests"] if suite == "short" else list_files_of_full_product()
            try_suite(copy, survivors, suite, tests or all_of_suite, env, jobs)
            if tests is None:
                try_suite(copy, survivors, suite, TESTS_WITHOUT_KERNELS, env | KERNELS_OFF, jobs)
            for mutant in survivors:
                mutant["full"] = mutant["full"] or mutant["short"]
            out.write_text(json.dumps(mutants, indent=1))
    for mutant in mutants:
        columns = ("mirrored", *SUITES)
        print_row(mutant, *(f"{name}: {mutant.get(name, '-') or 'survived'}" for name in columns))


def list_files_of_full_product() -> list[str]:
    """Return the test files that have more cases with GPUPIPE_TEST_ALL=1, by themselves or by a
    helper or a conftest.py that they use.
    """
    texts = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("*.py"))}
    word = re.compile(r"GPUPIPE_TEST_ALL|\bIS_FULL\b")
    depends = {path for path, text in texts.items() if word.search(text)}
    while True:
        shared = {path.stem for path in depends if not path.stem.startswith("test_")}
        names = "|".join(shared - {"conftest", "mutants"})
        uses = re.compile(rf"^(?:from|import) .*\b(?:{names})\b|\b(?:{names})\.py\b", re.M)
        more = {path for path, text in texts.items() if uses.search(text)} - depends
        if not more:
            break
        depends |= more
    folders = {path.parent for path in depends if path.name == "conftest.py"}
    return [
        str(path.relative_to(ROOT))
        for path in texts
        if path.name.startswith("test_") and (path in depends or folders.intersection(path.parents))
    ]


def try_suite(
    copy: TreeCopy,
    survivors: Sequence[Mutant],
    suite: str,
    tests: list[str],
    env: Mapping[str, str],
    jobs: int,
) -> None:
    """Write into each survivor the test of a suite that catches it."""
    many = ["-n", str(jobs), "--dist", "worksteal", *(f"--ignore={path}" for path in RAY_TESTS)]
    with mutated(copy, survivors):
        result = copy.run(tests, *many, "--continue-on-collection-errors", env=env)
    if result.status not in (0, 1):
        raise SystemExit(f"{suite}: the suite did not end: {result.caught_by}")
    failing = copy.run(result.failed, *ALONE, env=env).failed if result.failed else []
    catching = [test for test in result.failed if test not in failing]
    unexplained = set(catching)
    print(f"{suite} {dict(env)}: {result.passed} passed, these failed: {catching}", flush=True)
    for mutant in survivors if catching else []:
        with mutated(copy, [mutant]):
            alone = copy.run(catching, *ALONE, env=env)
        mutant[suite] = mutant[suite] or alone.caught_by
        unexplained -= set(alone.failed)
    print(f"  those that fail on no survivor alone: {sorted(unexplained)}", flush=True)


def print_row(mutant: Mutant, *columns: str) -> None:
    mutation = mutant["mutation"]
    needs = [f"needs {mutant['needs']}"] if mutant.get("needs") else []
    place = f"{mutant['file']}:{mutation['line']}"
    print(place, mutation["shown"], *columns, *needs, sep="  |  ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "survivors"):
        command = commands.add_parser(name)
        command.add_argument("out", type=Path, help="the JSON file of the results")
        command.add_argument("--jobs", type=int, default=2, help="how many processes run tests")
        if name == "survivors":
            command.add_argument("--tests", nargs="+", help="a part of the suites, for a trial")
        else:
            command.add_argument("--seed", type=int, default=0)
            command.add_argument("--count", type=int, default=30, help="how many mutants")
    options = parser.parse_args()
    if options.command == "run":
        run(options.out, options.seed, options.count, options.jobs)
    else:
        try_survivors(options.out, options.jobs, options.tests)


if __name__ == "__main__":
    main()
