"""Two mutants of each format and kind of damage among good files, on each engine; fuzz_images.py
does 10,000.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fuzz_images
import image_runs
from image_mutants import FORMATS, chunks, mutants
from image_seeds import seed

from helpers.full_product import IS_FULL

COUNT = (6 if IS_FULL else 2) * 5 * 11


def test_no_mutant_harms_a_good_file() -> None:
    ((folder, runs),) = fuzz_images.run(COUNT, jobs=2, photographs=[])
    assert not [said for run in runs.values() for said in run.findings]
    assert {(m.format, m.damage) for m in folder.mutants} >= {
        (f, d) for f in FORMATS for d in ("bits", "truncated", "deep", "another size")
    }
    found = fuzz_images.compare(folder, runs)
    assert found["good_apart"] <= 1
    for run in runs.values():
        assert len(run.delivered) > len(folder.good) + COUNT // 4, (
            "so many mutants can still be decoded"
        )
        assert len(run.bad) > COUNT // 4


def test_a_number_always_makes_the_same_mutant() -> None:
    numbers = range(0, 500, 7)
    every = list(mutants(numbers, 1_000_000))
    assert every == list(mutants(numbers, 1_000_000))
    assert len({m.content for m in every if m.damage != "bomb"}) == sum(
        m.damage != "bomb" for m in every
    )


@pytest.mark.parametrize("format", FORMATS)
def test_chunks_are_all_of_a_file(format: str) -> None:
    for n in range(20):
        whole = seed(format, np.random.default_rng(n))
        parts = chunks(whole)
        assert b"".join(parts) == whole.content
        assert len(parts) >= 2


PIXELS = np.zeros((2, 3, image_runs.SIDE, image_runs.SIDE), np.uint8)
RIGHT: dict[str, Any] = {
    "epochs": [[("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")]],
    "bad": {"c": "damaged"},
    "times_listed": 1,
    "peak_memory_mib": 1.0,
}


def test_what_is_right_is_no_finding() -> None:
    assert image_runs.checked(RIGHT, PIXELS).findings == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (
            {"epochs": [[("a", "1"), ("b", "2")], [("a", "1"), ("b", "3")]]},
            "b has other pixels in another epoch",
        ),
        ({"epochs": [[("a", "1"), ("b", "2")], [("a", "1")]]}, "b is delivered in one epoch alone"),
        (
            {"epochs": [[("a", "1"), ("a", "1")], [("a", "1")]]},
            "a is delivered 2 times in an epoch",
        ),
        ({"bad": {"b": "damaged"}}, "b is delivered and listed: damaged"),
        ({"times_listed": 2}, "1 files are listed 2 times"),
    ],
)
def test_what_is_wrong_is_found(change: dict[str, Any], finding: str) -> None:
    assert image_runs.checked(RIGHT | change, PIXELS).findings == [finding]


def test_a_file_that_ends_the_process_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_runs.make_folder(tmp_path, 0, 20)
    culprit = folder.mutants[13].name
    monkeypatch.setattr(image_runs, "PROGRAM", dying(tmp_path / "dying.py", culprit))
    (said,) = image_runs.fuzz(folder, "dataloader, pil").findings
    assert "exit code -11" in said
    assert f"culprits: {culprit}" in said


def dying(program: Path, culprit: str) -> Path:
    """A program that does as deliver_images.py does, and dies of a signal if a file is there."""
    program.write_text(f"""
import os, signal, sys
from pathlib import Path

if (Path(sys.argv[1]) / "class" / {culprit!r}).exists():
    os.kill(os.getpid(), signal.SIGSEGV)
nothing = '{{"epochs": [[], []], "bad": {{}}, "times_listed": 0, "peak_memory_mib": 1}}'
(Path(sys.argv[3]) / "epochs.json").write_text(nothing)
(Path(sys.argv[3]) / "pixels").touch()
""")
    return program
