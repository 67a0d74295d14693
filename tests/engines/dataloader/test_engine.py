"""The DataLoader engine delivers DALI's samples, order and draws, whatever its workers are."""

import os
import re
import time
from pathlib import Path

import pytest
import torch

import gpupipe
from gpupipe import config as configs
from gpupipe.bench import compare, parity
from helpers.dataloader_engine import STEPS, left_behind, load, python, same
from helpers.leftovers import list_descendants
from helpers.plugin import install


def test_samples_order_and_draws_are_dalis(
    faces: Path, epochs: list[list[dict[str, torch.Tensor]]]
) -> None:
    with load(faces, engine="dali") as dali:
        for epoch in epochs:
            for mine, other in zip(epoch, dali, strict=True):
                assert torch.equal(mine["id"], other["id"])
                assert torch.equal(mine["label"], other["label"])
                assert mine["image"].shape == other["image"].shape
                assert mine["image"].dtype == other["image"].dtype
                assert float((mine["image"] - other["image"]).abs().mean()) < 0.3 / 255


@pytest.mark.filterwarnings("ignore:loader.workers")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_delivers_the_same(
    faces: Path, epochs: list[list[dict[str, torch.Tensor]]], workers: int
) -> None:
    with load(faces, workers=workers) as loader:
        assert [same(list(loader), epoch) for epoch in epochs] == [True, True]
        assert (
            loader.engine.traits.parallelism_with_unit == f"{workers} worker{'s' * (workers > 1)}"
        )


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_any_start_method_delivers_the_same_and_leaves_nothing_behind(
    faces: Path, epochs: list[list[dict[str, torch.Tensor]]], method: str
) -> None:
    before = left_behind([os.getpid()])
    with load(faces, multiprocessing_context=method, persistent_workers=method != "fork") as loader:
        assert [same(list(loader), epoch) for epoch in epochs] == [True, True]
        owners = [os.getpid(), *list_descendants(os.getpid())]
        assert left_behind(owners) > before
    deadline = time.monotonic() + 60
    while left_behind(owners) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_behind(owners) <= before


@pytest.mark.parametrize("workers", [0, 1])
def test_breaking_off_and_setting_the_epoch(
    faces: Path, epochs: list[list[dict[str, torch.Tensor]]], workers: int
) -> None:
    with load(faces, workers=workers) as loader:
        assert same([next(iter(loader))], epochs[0][:1])
        assert same(list(loader), epochs[1])
        loader.sampler.set_epoch(0)
        assert same(list(loader), epochs[0])


def test_a_state_goes_on_in_the_other_engine(
    faces: Path, epochs: list[list[dict[str, torch.Tensor]]]
) -> None:
    with load(faces, engine="dali") as dali:
        iterator = iter(dali)
        next(iterator)
        state = dali.state_dict()
    with load(faces) as loader:
        loader.load_state_dict(state)
        assert same(list(loader), epochs[0][1:])


# --- forms of a batch


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_dtype_and_memory_format(faces: Path, dtype: str, memory_format: str) -> None:
    steps = STEPS[:3] if dtype == "uint8" else STEPS
    with (
        load(faces, steps, dtype=dtype, memory_format=memory_format, workers=0) as mine,
        load(faces, steps, dtype=dtype, engine="dali") as dali,
    ):
        image, other = next(iter(mine))["image"], next(iter(dali))["image"]
    assert image.dtype == getattr(torch, dtype) == other.dtype
    assert image.shape == other.shape == (16, 3, 160, 160)
    assert image.is_contiguous(
        memory_format={"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}[
            memory_format
        ]
    )
    scale = 1 if dtype == "uint8" else 255
    assert float((image.double() - other.double()).abs().mean()) * scale < 0.6


def test_pillow_decodes_nearly_the_same(faces: Path) -> None:
    with load(faces, ["decode"], decoder="pil") as pil, load(faces, ["decode"]) as other:
        for a, b in zip(pil, other, strict=True):
            assert int((a["image"].int() - b["image"].int()).abs().max()) <= 1


# --- steps and machines that it cannot run on


DALI_ALONE = """
from gpupipe.pipeline.spec_checks import check_decoded
from gpupipe.pipeline.step import Step


class Posterize(Step):
    def infer_spec(self, given):
        return check_decoded(given)

    def lower(self, image, p):
        image.apply("posterize", lambda pixels: pixels & 0xF0)
"""


def test_a_step_that_only_dali_has_is_named(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, "posterize", DALI_ALONE, posterize="Posterize"))
    with pytest.raises(
        gpupipe.EngineError,
        match=r"Posterize has no torch lowering; it cannot run on the DataLoader engine.*engine: "
        r"dali",
    ):
        load(faces, ["decode", "posterize"])
    checked = configs.read(
        {
            "data": {"source": "folder", "root": faces},
            "pipeline": ["decode", "posterize", "random_horizontal_flip"],
        }
    )
    sides, notes = compare.list_contestants(checked, [1], 0, ["dali", "dataloader"])
    assert [side.name for side in sides] == ["DALI on CPU"]
    assert any(
        "no lowering for the DataLoader: posterize" in note and "left out" in note for note in notes
    )
    assert [a.step for a in parity.measure(checked, checked.source.index(), ["cpu"], 2)] == [
        "decode"
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said(faces: Path) -> None:
    with pytest.raises(gpupipe.DeviceError, match=r"loader\.device=gpu asks for a GPU"):
        load(faces, device="gpu")


def test_without_dali_the_other_engines_run(small_faces: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["nvidia.dali"] = None
from click.testing import CliRunner
from gpupipe.cli.app import main
import pathlib
config = "data: {{source: folder, root: {small_faces}}}\\npipeline: affine\\n"
pathlib.Path("config.yaml").write_text(config)
run = ["run", "config.yaml", "device=cpu", "batch_size=16", "--repeats", "1"]
loader = ["engine=dataloader", "workers=1"]
for command in (run, [*run, *loader], ["check", "config.yaml", *loader]):
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    print(done.output)
print(CliRunner().invoke(main, ["run", "config.yaml", "engine=dali"]).output)
"""
    said = python(code, tmp_path, has_torch_alone=True)
    assert re.search(r"pipeline affine, cpu on cpu, \d+ threads?, batches of 16", said)
    assert "pipeline affine, dataloader on cpu, 1 worker, batches of 16" in said
    assert "random_affine.torch" in said
    assert "NVIDIA DALI is not installed" in said
