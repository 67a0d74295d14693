"""A GPU that fails is named, and no file is blamed for it, whatever on_error says."""

from pathlib import Path
from typing import Any

import pytest

from gpupipe.engines.dali.operators.trial import KnownGood
from helpers.broken_machine import run_on_broken_machine
from helpers.cut_jpegs import jpeg

ON_ERROR = [{"on_error": "raise"}, {"on_error": "skip", "max_bad": 1.0}]


def broken(what: str, root: Path, **options: Any) -> tuple[str, str, int]:
    """The error's class, its message and how many samples were skipped, of a process whose GPU
    fails in mid-epoch.
    """
    (root / "images" / "one").mkdir(parents=True)
    data = jpeg(size=(1500, 1500))
    for n in range(64):
        (root / "images" / "one" / f"{n:02}.jpg").write_bytes(data)
    given = {"device": "gpu", "batch_size": 8, "quarantine": str(root / "bad.jsonl"), **options}
    outcome = run_on_broken_machine(what, root, given)
    assert not (root / "bad.jsonl").exists()
    return outcome


@pytest.mark.parametrize("on_error", ON_ERROR, ids=str)
@pytest.mark.parametrize("engine", ["dali", "cpu", "dataloader"])
def test_after_a_cuda_error_that_stays_no_sample_is_to_blame(
    tmp_path: Path, engine: str, on_error: dict[str, Any]
) -> None:
    name, said, skipped = broken("with_broken_cuda", tmp_path, engine=engine, workers=0, **on_error)
    assert (name, skipped) == ("EngineError", 0)
    assert "the GPU, or its driver, failed (" in said
    assert "start the process again" in said


@pytest.mark.parametrize("on_error", ON_ERROR, ids=str)
def test_without_gpu_memory_no_sample_is_to_blame(tmp_path: Path, on_error: dict[str, Any]) -> None:
    """Batches that are held take 864 MB each, and 64 MB are left."""
    name, said, skipped = broken("without_gpu_memory", tmp_path, batch_size=32, **on_error)
    assert (name, skipped) == ("EngineError", 0)
    assert (
        "out of memory" in said or "DALI cannot decode an image that nothing is wrong with" in said
    )


def test_a_known_good_image_passes_where_the_gpu_works() -> None:
    known_good = KnownGood(0)
    for _ in range(3):
        known_good.check("Failed to decode")
