"""A good file is never blamed for the machine's failure: memory, open files, decoders and CUDA that
are not there.
"""

import errno
import functools
import os
import re
from pathlib import Path
from typing import Any

import pytest
from nvidia.dali import fn

import gpupipe
from gpupipe import config
from gpupipe.engines.dali.operators.dtypes import find_refused_dtype
from gpupipe.engines.dali.operators.trial import KnownGood
from gpupipe.pipeline import step_registry
from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.step import Params, Step
from gpupipe.runtime.failures import machine_errors, machine_failure
from helpers.broken_machine import run_on_broken_machine
from helpers.cut_jpegs import jpeg
from helpers.dali_loaders import load_on_dali
from helpers.loaders import ENGINES

# --- words

IN_DALI = """Critical error in pipeline:
Error in {kind} operator `nvidia.dali.fn.decoders.image`,
which was used in the pipeline definition with the following traceback:

  File "dali_ops.py", line 32, in decode
    return fn.decoders.image(data, **options)

encountered:

{said}
Current pipeline object is no longer valid."""
"""As DALI 2.4 words an error."""
WORDS = {
    "CUDA runtime API error cudaErrorIllegalAddress (700):\nan illegal memory access was "
    "encountered": "the GPU, or its driver, failed",
    "CUDA runtime API error cudaErrorLaunchFailure (719):\nunspecified launch failure": (
        "the GPU, or its driver, failed"
    ),
    "CUDA driver API error CUDA_ERROR_ECC_UNCORRECTABLE (214):\nuncorrectable ECC error "
    "encountered": "the GPU, or its driver, failed",
    "nvml error (999): Unknown Error": "the GPU, or its driver, failed",
    "Unhandled CUDA error: cudaErrorIllegalAddress": "the GPU, or its driver, failed",
    "CUDA allocation failed": "the GPU is out of memory",
    "Can't allocate 129499136 bytes on device 0.": "the GPU is out of memory",
    "CUDA driver API error CUDA_ERROR_OUT_OF_MEMORY (2):\nout of memory": (
        "the GPU is out of memory"
    ),
    "Error in thread 3: CUDA allocation failed": "the GPU is out of memory",
    "Can't allocate 129499136 bytes on host.": "out of memory",
    "std::bad_alloc": "out of memory",
}


@pytest.mark.parametrize("said", WORDS)
@pytest.mark.parametrize("kind", ["CPU", "Mixed", "GPU"])
def test_what_dali_says_of_the_machine(said: str, kind: str) -> None:
    found = machine_failure(RuntimeError(IN_DALI.format(kind=kind, said=said)))
    assert found.startswith(f"{WORDS[said]} (")
    quoted = re.search(r"\(([\w: ]+)", found)
    assert quoted
    assert quoted[1].rstrip() in said
    assert ": make loader.batch_size" in found or "`gpupipe doctor`" in found
    assert "\n" not in found


IN_TORCH = {
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 "
    "GiB": "the GPU is out of memory",
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be "
    "asynchronously reported": "the GPU, or its driver, failed",
    "CUDA error: out of memory": "the GPU is out of memory",
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
    "memory: you tried to allocate 8 bytes": "out of memory",
    "Caught MemoryError in DataLoader worker process 0.": "out of memory",
    "Too many open files. Communication with the workers is no longer possible": (
        "this process cannot open more files"
    ),
}


@pytest.mark.parametrize("said", IN_TORCH)
def test_what_torch_says_of_the_machine(said: str) -> None:
    assert machine_failure(RuntimeError(said)).startswith(f"{IN_TORCH[said]} (")


def test_other_exceptions_of_the_machine() -> None:
    assert machine_failure(MemoryError()).startswith("out of memory (MemoryError)")
    for number, what in (
        (errno.EMFILE, "this process cannot open more files"),
        (errno.ENFILE, "this process cannot"),
        (errno.ENOMEM, "out of memory"),
    ):
        assert machine_failure(OSError(number, os.strerror(number), "/a/b.jpg")).startswith(what)


@pytest.mark.parametrize(
    "said",
    [
        "Failed to decode sample #3",
        "a JPEG that was cut off: its end is missing (3 bytes are there)",
        "nvImageCodec failure: '#3'",
        "/a/out of memory.jpg is gone",
    ],
)
def test_what_a_sample_is_to_blame_for(said: str) -> None:
    assert not machine_failure(RuntimeError(said))
    assert not find_refused_dtype(IN_DALI.format(kind="Mixed", said=said))
    assert not machine_failure(OSError(errno.EIO, os.strerror(errno.EIO), "/a/b.jpg"))


def test_a_decoder_that_does_not_know_a_kind_of_file_refuses_no_dtype() -> None:
    said = "Unsupported type: float16. Supported types are: uint8"
    assert (
        find_refused_dtype(
            IN_DALI.format(kind="CPU", said=said).replace("decoders.image", "resize")
        )
        == said
    )
    assert not find_refused_dtype(IN_DALI.format(kind="CPU", said=said))


def test_only_the_machines_errors_are_made_engine_errors() -> None:
    with (
        pytest.raises(
            gpupipe.EngineError, match=r"^out of memory \(std::bad_alloc\): make loader.batch_size"
        ),
        machine_errors(),
    ):
        raise RuntimeError("std::bad_alloc")
    with pytest.raises(RuntimeError, match=r"^anything else$"), machine_errors():
        raise RuntimeError("anything else")


# --- machines that fail


def broken(what: str, root: Path, **options: Any) -> tuple[str, str, int]:
    """The error's class, its message and how many samples were skipped, of a process in which the
    machine fails.
    """
    quarantine = root / "bad.jsonl"
    given = {
        "device": "cpu",
        "batch_size": 8,
        "threads": 2,
        "quarantine": str(quarantine),
        **options,
    }
    outcome = run_on_broken_machine(what, root, given)
    assert not quarantine.exists()
    return outcome


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "images" / "one").mkdir(parents=True)
    (tmp_path / "nothing").mkdir()
    return tmp_path


square_jpeg = functools.cache(lambda side: jpeg(size=(side, side)))


def fill(root: Path, side: int) -> None:
    data = square_jpeg(side)
    for n in range(8):
        (root / "images" / "one" / f"{n}.jpg").write_bytes(data)


ON_ERROR = [{"on_error": "raise"}, {"on_error": "skip", "max_bad": 1.0}]


@pytest.mark.parametrize("on_error", ON_ERROR, ids=str)
@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_without_memory_no_sample_is_to_blame(
    root: Path, engine: dict[str, Any], on_error: dict[str, Any]
) -> None:
    fill(root, 2500)
    name, said, skipped = broken("without_memory", root, **engine, **on_error)
    assert (name, skipped) == ("EngineError", 0)
    assert said.startswith("out of memory (")
    assert "make loader.batch_size, loader.prefetch or loader.workers smaller" in said


@pytest.mark.parametrize("on_error", ON_ERROR, ids=str)
@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_without_open_files_no_sample_is_to_blame(
    root: Path, engine: dict[str, Any], on_error: dict[str, Any]
) -> None:
    fill(root, 64)
    name, said, skipped = broken("without_files", root, **engine, **on_error)
    assert (name, skipped) == ("EngineError", 0)
    assert said.startswith(
        "this process cannot open more files (Too many open files): raise the limit (ulimit -n)"
    )


@pytest.mark.parametrize("on_error", ON_ERROR, ids=str)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_without_decoders_no_sample_is_to_blame(
    root: Path, on_error: dict[str, Any], batch_size: int
) -> None:
    """DALI's words are those that it has for a damaged file: only an image that is known to be good
    tells the two apart.
    """
    fill(root, 64)
    options = {"engine": "dali", "batch_size": batch_size, **on_error}
    name, said, skipped = broken("without_decoders", root, **options)
    assert (name, skipped) == ("EngineError", 0)
    assert said.startswith(
        "DALI cannot decode an image that nothing is wrong with (Failed to decode sample "
        "#0), so that no sample is to blame for"
    )


def test_a_known_good_image_passes_where_the_machine_works() -> None:
    known_good = KnownGood(None)
    for _ in range(3):
        known_good.check("Failed to decode")


# --- dtypes


class Darker(Step):
    """A step whose operator takes no float16."""

    def lower(self, image: Primitives, p: Params) -> None:
        image.apply(
            "brightness_contrast", lambda pixels: fn.brightness_contrast(pixels, brightness=0.5)
        )

    def torch(self, image: Any, p: Params) -> Any:
        return image * 0.5


@pytest.mark.parametrize("on_error", ON_ERROR, ids=str)
def test_what_an_operator_does_not_take_is_no_samples_fault(
    root: Path, on_error: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a step that the table of dtypes does not know, because it comes from another package."""
    fill(root, 64)
    known = step_registry.STEPS.find
    monkeypatch.setattr(
        step_registry.STEPS, "find", lambda name: Darker if name == "darker" else known(name)
    )
    steps = ["decode", {"to_dtype": {"dtype": "float16"}}, "darker"]
    checked = config.read(
        {"data": {"source": "folder", "root": root / "images"}, "pipeline": steps},
        device="cpu",
        batch_size=4,
        **on_error,
    )
    with load_on_dali(checked) as loader:
        said = (
            r"an operator of DALI does not take what a step gave it: Unsupported input type: "
            r"float16\. Write 'to_dtype: \{dtype: float32\}'"
        )
        with pytest.raises(gpupipe.EngineError, match=said):
            list(loader)
        assert len(loader.engine.quarantine) == 0
