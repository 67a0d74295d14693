"""torch inside DALI's CPU graph: errors, branches, memory, and an end before all is delivered."""

import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali import Pipeline, fn, types
from PIL import Image

import gpupipe
from gpupipe.engines.dali.operators import ops
from gpupipe.engines.dali.operators.image_functions import call_torch
from helpers import forked_python
from helpers.arrays import saved
from helpers.plugin import install
from helpers.python_end import END

COUNT = 8


def source(array: Any, layout: str = "") -> Any:
    dtype = types.to_dali_type(str(array.dtype))
    return fn.external_source(lambda: array, dtype=dtype, ndim=array.ndim - 1, layout=layout)


def run_pipeline(build: Any, *arrays: Any, times: int = 1) -> list[Any]:
    """What a pipeline makes of images and arguments, several times."""
    pipe: Any = Pipeline(
        batch_size=COUNT,
        num_threads=2,
        device_id=None,
        exec_dynamic=True,
        prefetch_queue_depth=1,
    )
    with pipe:
        nodes = [source(array, "" if n else "HWC") for n, array in enumerate(arrays)]
        pipe.set_outputs(build(*nodes))
    made = [pipe.run()[0] for _ in range(times)]
    return [[np.array(output[n]) for n in range(COUNT)] for output in made]


def images(dtype: str = "uint8") -> Any:
    return np.random.default_rng(0).integers(0, 100, (COUNT, 5, 7, 3)).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_each_image_meets_its_own_arguments(dtype: str) -> None:
    pixels, factors = images(dtype), np.arange(COUNT, dtype=np.float32)

    def multiply(image: torch.Tensor, factor: Any) -> torch.Tensor:
        assert image.shape == (3, 5, 7)
        return image.float() * float(factor)

    (made,) = run_pipeline(lambda x, f: call_torch(x, [f], multiply), pixels, factors)
    for n in range(COUNT):
        assert made[n].dtype == np.float32
        assert np.array_equal(made[n], pixels[n].astype(np.float32) * n)


def test_the_result_may_be_the_input_itself_and_lasts() -> None:
    """It is copied, as DALI uses the memory of its input again."""
    pixels = images()
    for made in run_pipeline(lambda x: call_torch(x, [], lambda image: image), pixels, times=20):
        assert np.array_equal(made, pixels)


@pytest.mark.parametrize("taken", [[], [0], [1, 3, 4], range(COUNT)], ids=str)
def test_in_a_branch_it_sees_only_the_samples_that_take_it(taken: Any) -> None:
    pixels, predicate = images(), np.isin(np.arange(COUNT), list(taken))
    seen: list[int] = []

    def invert(image: torch.Tensor) -> torch.Tensor:
        seen.append(next(n for n in range(COUNT) if np.array_equal(image[0], pixels[n, ..., 0])))
        return 255 - image

    def build(x: Any, p: Any) -> Any:
        yes, no = ops.split(x, p)
        return ops.merge(call_torch(yes, [], invert), no, p)

    (made,) = run_pipeline(build, pixels, predicate)
    assert sorted(seen) == list(taken)
    for n in range(COUNT):
        assert np.array_equal(made[n], 255 - pixels[n] if n in taken else pixels[n])


def test_an_error_has_its_reason() -> None:
    def fail(image: torch.Tensor) -> torch.Tensor:
        raise ValueError("this image is odd")

    with pytest.raises(RuntimeError, match="ValueError: this image is odd"):
        run_pipeline(lambda x: call_torch(x, [], fail), images())


def data_of(folder: Path, count: int = 40) -> dict[str, Any]:
    return saved(folder, np.random.default_rng(0).integers(0, 256, (count, 3, 24, 30), np.uint8))


STEP = {"elastic_transform": {"sigma": 2}}


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_loader_closes_while_batches_are_in_flight(tmp_path: Path, taken: int) -> None:
    """In a thread, so that a deadlock fails the test."""
    written = {"data": data_of(tmp_path), "pipeline": [STEP]}
    options = {"engine": "dali", "device": "cpu", "batch_size": 4, "prefetch": 3}

    def use() -> None:
        for _ in range(5):
            with gpupipe.load(written, **options) as loader:
                batches = iter(loader)
                for _ in range(taken):
                    next(batches)
        finished.set()

    finished = threading.Event()
    threading.Thread(target=use, daemon=True).start()
    assert finished.wait(120)


def test_a_process_ends_with_an_open_loader(tmp_path: Path) -> None:
    data_of(tmp_path)
    program = f"""
        import gpupipe
        data = {{"source": "numpy", "files": {str(tmp_path / "rows.npy")!r}, "rows": True}}
        config = {{"data": data, "pipeline": [{STEP!r}]}}
        loader = gpupipe.load(config, engine="dali", device="cpu", batch_size=4)
        batches = iter(loader)
        print(next(batches)["array"].shape, flush=True)
    """
    ended = forked_python.run(["-c", textwrap.dedent(program) + END])
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "torch.Size([4, 3, 24, 30])\n"


PICKY = """
from gpupipe.engines.dali.operators.image_functions import call_torch
from gpupipe.pipeline.step import Step


class Picky(Step):
    def lower(self, image, p):
        image.apply("python_function", lambda pixels: call_torch(pixels, [], self.check))

    def check(self, image):
        if (image == 77).all():
            raise ValueError("it is 77 all over")
        return image
"""


@pytest.fixture
def picky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A config whose step fails at the sixth of ten images."""
    (tmp_path / "plugin").mkdir()
    folder = install(tmp_path / "plugin", "picky_step", PICKY, picky="Picky")
    monkeypatch.syspath_prepend(str(folder))
    (tmp_path / "images" / "class").mkdir(parents=True)
    for n in range(10):
        color = 77 if n == 5 else n
        image = Image.new("RGB", (30, 20), (color, color, color))
        image.save(tmp_path / "images" / "class" / f"{n}.png")
    return {
        "data": {"source": "folder", "root": str(tmp_path / "images")},
        "pipeline": ["decode", "picky"],
        "loader": {"batch_size": 4, "device": "cpu", "shuffle": False, "engine": "dali"},
    }


def test_an_error_names_the_file_of_the_sample(picky: dict[str, Any]) -> None:
    failed = pytest.raises(gpupipe.SampleError, match=r"(?s)class/5\.png.*it is 77 all over")
    with gpupipe.load(picky) as loader, failed:
        list(loader)


def test_a_sample_that_fails_may_be_skipped(picky: dict[str, Any], tmp_path: Path) -> None:
    options = {
        "on_error": "skip",
        "max_bad": 0.5,
        "quarantine": tmp_path / "bad.jsonl",
        "ids": True,
    }
    with gpupipe.load(picky, **options) as loader:
        made = [int(id) for batch in loader for id in batch["id"]]
    assert made == [0, 1, 2, 3, 4, 6, 7, 8, 9]
