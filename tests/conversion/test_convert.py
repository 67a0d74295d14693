"""Converting: the same batches, what a kill leaves, and whose fault a failure is."""

import io
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

import gpupipe
from gpupipe.conversion.convert import ConversionResult
from gpupipe.errors import GpupipeError
from helpers.cached_loading import complete
from helpers.conversions import COUNT, STEPS, run, write_config
from helpers.stored_shards import write_tar

BLOCKING = '''
import time
from pathlib import Path

class Blocking:
    """The photographs as bytes. Without the file `go`, the 36th read does not end."""

    def __init__(self, root, go):
        self.files = sorted(map(str, Path(root).glob("*/*.jpg")))
        self.go, self.reads = go, 0

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        self.reads += 1
        while self.reads > 35 and not Path(self.go).exists():
            time.sleep(0.01)
        return {"image": Path(self.files[index]).read_bytes(), "label": index % 3}
'''


@pytest.mark.parametrize("format", ["tar", "parquet"])
def test_batches_of_the_shards_are_those_of_the_source_to_the_bit(
    photo_config: Path, find: Callable[[str], ConversionResult], format: str
) -> None:
    conversion = find(format)
    assert conversion.samples == COUNT
    assert len(conversion.shards) > 3
    before, after = gpupipe.load(photo_config), gpupipe.load(conversion.config)
    assert after.index.classes == before.index.classes
    pairs = zip(before, after, strict=True)
    for batch, other in pairs:
        assert list(batch) == list(other) == ["image", "label", "id"]
        assert all(torch.equal(batch[name], other[name]) for name in batch)


def test_a_conversion_that_was_killed_goes_on_and_makes_the_same_files(
    photo_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "blocking_items.py").write_text(BLOCKING)
    go, out, whole = tmp_path / "go", tmp_path / "out", tmp_path / "whole"
    args = {"root": str(photo_folder), "go": str(go)}
    data = {"source": "python", "call": "blocking_items:Blocking", "args": args}
    config = write_config(tmp_path, data)
    command = [sys.executable, "-m", "gpupipe", "convert", str(config), str(out)]
    with subprocess.Popen([*command, "--shard-size", "1"], stderr=subprocess.DEVNULL) as process:
        manifest = out / "manifest.jsonl"
        while (
            not manifest.exists()
            or manifest.read_text().count("\n") < 6
            or not any(out.glob("*.tmp"))  # a shard is open
        ):
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    finished = {path: path.stat().st_ino for path in out.glob("*.tar")}
    assert finished
    assert len(finished) < COUNT
    with manifest.open("a") as file:
        file.write('{"shard": "cut off')
    go.touch()
    result = run(config, out, shard_bytes=1)
    assert 0 < result.made <= COUNT - 5
    assert result.samples == COUNT
    noted = result.shards[: COUNT - result.made]
    kept = [path for path, number in finished.items() if path.stat().st_ino == number]
    assert len(kept) >= len(noted) >= 5, "finished shards stay"
    run(config, whole, shard_bytes=1)
    names = sorted(path.name for path in whole.iterdir())
    assert names == sorted(path.name for path in out.iterdir())
    for name in names:
        if name not in ("manifest.jsonl", "train.yaml"):
            assert (out / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_folder_with_other_things_is_refused(
    photo_config: Path, tarred: ConversionResult, tmp_path: Path
) -> None:
    with pytest.raises(GpupipeError, match=r"another max_side \(None in place of 50\)"):
        run(photo_config, tarred.config.parent, max_side=50)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(GpupipeError, match="not empty"):
        run(photo_config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("format", ["tar", "parquet"])
def test_pixels_that_are_decoded_once_make_the_same_batches(
    photo_folder: Path, tmp_path: Path, format: str
) -> None:
    steps = [
        *STEPS,
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"normalize": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2]}},
    ]
    config = write_config(tmp_path, {"source": "folder", "root": str(photo_folder)}, steps)
    result = run(config, tmp_path / "out", raw=True, format=format)
    assert result.changes == {"decoded": COUNT}
    shard = next((tmp_path / "out").glob(f"*.{format}"))
    if format == "tar":
        with tarfile.open(shard) as tar:
            assert {name.partition(".")[2] for name in tar.getnames()} == {"npy", "cls"}
    else:
        row = pyarrow.parquet.read_table(shard)["image"][0].as_py()
        assert np.load(io.BytesIO(row["bytes"])).shape[0] == 3
        assert row["path"].endswith(".npy")
    before, after = next(iter(gpupipe.load(config))), next(iter(gpupipe.load(result.config)))
    assert torch.equal(before["image"], after["image"])


def test_a_store_in_shards_is_converted_when_all_of_it_is_in_the_cache(
    photo_folder: Path, tmp_path: Path
) -> None:
    images = [path.read_bytes() for path in sorted(photo_folder.glob("*/*.jpg"))[:6]]
    for n in range(3):
        samples = [{"jpg": images[2 * n + k], "cls": str(k).encode()} for k in range(2)]
        write_tar(tmp_path / "store" / f"{n}.tar", samples)
    cache = {"dir": str(tmp_path / "cache"), "max_bytes": "50MB", "workers": 1}
    data = {"source": "remote", "url": f"file://{tmp_path}/store", "shards": "*.tar"}
    config = write_config(tmp_path, {**data, "cache": cache})
    said = (
        r"train.json:1:\d+: 0 of the 3 shards of data.shards are in the cache: run 'gpupipe cache"
    )
    with pytest.raises(gpupipe.DataError, match=said):
        run(config, tmp_path / "out")
    complete(json.loads(config.read_text()))
    result = run(config, tmp_path / "out")
    assert result.is_renumbered
    with gpupipe.load(result.config) as loader:
        assert [bytes(loader.index.read(row)) for row in range(6)] == images
        assert loader.index.labels.tolist() == [0, 1] * 3
