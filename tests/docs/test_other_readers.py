"""What the pages show of other programs that read the cache: webdataset, and tf.data of TensorFlow.

TensorFlow may be in another environment: GPUPIPE_TENSORFLOW names its Python.
"""

import ast
import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import stored_shards
from helpers.cached_loading import complete
from helpers.code_blocks import read_blocks
from helpers.faulty_store import serve

DOCS = Path(__file__).parents[2] / "docs"
Samples = list[tuple[int, str]]
"""Of each sample, the label, and the SHA-256 of its file."""


@pytest.fixture
def images(faces: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(faces.glob("*/*.jpg"))[:60]]


@pytest.fixture
def tensorflow() -> str:
    """A Python that has TensorFlow."""
    named = os.environ.get("GPUPIPE_TENSORFLOW", "")
    if not named and importlib.util.find_spec("tensorflow") is None:
        pytest.skip("needs tensorflow, or GPUPIPE_TENSORFLOW, a Python that has it")
    return named or sys.executable


@pytest.fixture
def tar_cache(faces: Path, tmp_path: Path, forked_executable: None) -> Path:
    """A folder with `cache`, which was filled with tars of a store."""
    stored_shards.write_tars(tmp_path / "store", faces)
    fill(tmp_path, stored_shards.NAMES)
    return tmp_path


@pytest.fixture
def record_cache(images: list[bytes], tmp_path: Path, forked_executable: None) -> Path:
    """A folder with `cache`, which was filled with TFRecord files of a store."""
    (tmp_path / "store").mkdir()
    for n in range(3):
        part = images[20 * n : 20 * n + 20]
        stored_shards.write_tfrecord(tmp_path / f"store/{n}.tfrecord", part, 20 * n)
    fill(tmp_path, ["{0..2}.tfrecord"])
    return tmp_path


def fill(folder: Path, shards: list[str]) -> None:
    """Fill the cache from a web server."""
    with serve(folder / "store") as (url, _):
        cache = {"dir": str(folder / "cache"), "max_bytes": "8MB"}
        data = {"source": "remote", "url": url, "shards": shards, "cache": cache}
        complete({"data": data, "pipeline": ["decode"]})


def find_block(page: str, mark: str) -> str:
    """Return the block of a page that has a text."""
    (code,) = (block.code for block in read_blocks(DOCS / page) if mark in block.code)
    return code.replace("/nvme/photos", "cache")


def run(python: str, folder: Path, *code: str) -> list[str]:
    """Run parts of a program in a process of its own, and return the lines that it printed."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(folder)}
    command = [python, "-c", "\n".join(code)]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | quiet, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def describe(images: list[bytes]) -> Samples:
    return [(n, hashlib.sha256(image).hexdigest()) for n, image in enumerate(images)]


LIST_SAMPLES = """
import hashlib
print(sorted((int(n), hashlib.sha256(image.numpy()).hexdigest()) for image, n in samples))
"""


def test_webdataset_reads_the_tars(tar_cache: Path, images: list[bytes]) -> None:
    more = """
import hashlib
samples = webdataset.WebDataset(shards, shardshuffle=False).to_tuple("jpg", "cls")
print(sorted((int(n), hashlib.sha256(image).hexdigest()) for image, n in samples))
"""
    block = find_block("tutorials/shards.md", "import webdataset")
    count, samples = run(sys.executable, tar_cache, block, more)
    assert count == "60 samples in 6 shards"
    assert ast.literal_eval(samples) == describe(images)


def test_tensorflow_reads_the_tars(tensorflow: str, tar_cache: Path, images: list[bytes]) -> None:
    block = find_block("tutorials/shards.md", "import tarfile")
    count, samples = run(tensorflow, tar_cache, block, LIST_SAMPLES)
    assert count == "60 samples in 6 shards"
    assert ast.literal_eval(samples) == describe(images)


def test_tensorflow_reads_the_records(
    tensorflow: str, record_cache: Path, images: list[bytes]
) -> None:
    more = """
samples = samples.map(lambda s: (s["image/encoded"], s["image/class/label"]))
"""
    block = find_block("remote.md", "TFRecordDataset")
    (samples,) = run(tensorflow, record_cache, "import tensorflow as tf", block, more, LIST_SAMPLES)
    assert ast.literal_eval(samples) == describe(images)


def test_keras_trains_on_the_batches(tensorflow: str, tar_cache: Path) -> None:
    """Both are in one process: the packages of this Python come after those of the other one."""
    (tar_cache / "sitecustomize.py").write_text(f"import sys\nsys.path += {sys.path!r}\n")
    (tar_cache / "train.yaml").write_text(
        "data:\n  source: remote\n"
        f"  url: file://{tar_cache}/store\n  shards: '**/*.tar'\n"
        "  cache: {dir: again, max_bytes: 8MB, epoch: full}\n"
        "pipeline: [decode, {random_resized_crop: {size: 96}}]\n"
        "loader: {batch_size: 16, device: cpu, engine: cpu}\n"
    )
    more = """
layers = tf.keras.layers
model = tf.keras.Sequential([layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(60)])
model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
fitted = model.fit(dataset, epochs=2, verbose=0)
orders = [[int(n) for _, labels in dataset for n in labels] for _ in range(2)]
loader.close()
print([len(fitted.history["loss"]), *orders])
"""
    block = find_block("remote.md", "import tensorflow")
    (printed,) = run(tensorflow, tar_cache, block, more)
    epochs, first, second = ast.literal_eval(printed)
    assert epochs == 2
    assert sorted(first) == sorted(second) == list(range(60))
    assert first != second
