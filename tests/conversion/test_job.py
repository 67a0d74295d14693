"""Writing shards: which are made again, and what becomes of damaged samples."""

import os
import shutil
from pathlib import Path

import pytest

import gpupipe
from gpupipe.conversion.convert import ConversionResult
from gpupipe.errors import SampleError, TooManyBadError
from helpers.conversions import COUNT, run, write_config


def test_a_second_run_makes_only_the_shards_that_are_gone(
    photo_config: Path, tarred: ConversionResult, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(tarred.config.parent, out)
    assert run(photo_config, out).made == 0
    lost, cut = sorted(out.glob("*.tar"))[:2]
    lost.unlink()
    os.truncate(cut, 1024)
    assert run(photo_config, out).made == 2
    assert lost.read_bytes() == (tarred.config.parent / lost.name).read_bytes()


def test_damaged_samples_are_refused_or_left_out_and_named(
    photo_folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / "photographs"
    shutil.copytree(photo_folder, root)
    files = sorted(root.glob("*/*.jpg"))
    os.truncate(files[3], files[3].stat().st_size // 2)
    files[7].write_bytes(b"")
    data = {"source": "folder", "root": str(root)}
    with pytest.raises(SampleError, match=r"\.jpg: .*(cut off|empty)"):
        run(write_config(tmp_path, data), tmp_path / "raised")
    with pytest.raises(TooManyBadError, match=r"max_bad=0\.05"):
        run(write_config(tmp_path, data, on_error="skip", max_bad=0.05), tmp_path / "many")
    config = write_config(tmp_path, data, on_error="skip", max_bad=0.5)
    result = run(config, tmp_path / "out")
    assert result.samples == COUNT - 2
    assert [str(files[n]) in result.skipped[i] for i, n in enumerate((3, 7))] == [True, True]
    labels = gpupipe.load(config).index.labels.tolist()
    kept = [label for n, label in enumerate(labels) if n not in (3, 7)]
    batches = list(gpupipe.load(result.config, shuffle=False))
    assert [label for batch in batches for label in batch["label"].tolist()] == kept
