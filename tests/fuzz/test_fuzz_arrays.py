"""The fuzzers of the sources of arrays, for a few seconds: GPUPIPE_FUZZ_SECONDS says how many."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fuzz_npy
import fuzz_raw
from fuzzing import mistakes

SECONDS = float(os.environ.get("GPUPIPE_FUZZ_SECONDS", "2"))


@pytest.mark.parametrize("target", [fuzz_npy, fuzz_raw], ids=["npy", "raw"])
def test_nothing_is_found(target: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "FOLDER", tmp_path)
    if target is fuzz_npy:
        monkeypatch.setattr(fuzz_npy, "FILE", tmp_path / "x.npy")
    # both modules have them
    runs, taken = mistakes(target.one, target.seeds(), SECONDS)  # type: ignore[attr-defined]
    assert runs >= len(target.seeds())  # type: ignore[attr-defined]
    assert taken > 10
