"""gpupipe compare, parity and profile, and the DataLoader engine, where there is a GPU."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from gpupipe import config as configs
from gpupipe.bench import profile, training
from gpupipe.bench.machine import Load
from gpupipe.bench.parity import measure
from gpupipe.runtime.ranks import cores
from helpers.either_device import DEVICE, TYPE

STEPS: list[Any] = [
    "decode",
    {"random_crop": {"size": 128}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
]


def quiet(what: str, done: int, total: int) -> None:
    """Nobody watches."""


@pytest.mark.either_device
@pytest.mark.parametrize("pin_memory", [True, False])
def test_the_dataloader_puts_batches_on_the_gpu(faces: Path, pin_memory: bool) -> None:
    config = {"data": {"source": "folder", "root": faces}, "pipeline": STEPS}
    options: dict[str, Any] = {"engine": "dataloader", "workers": 2, "batch_size": 16}
    with (
        gpupipe.load(config, **options, device="cpu") as expected,
        gpupipe.load(config, **options, device=DEVICE, pin_memory=pin_memory) as found,
    ):
        for a, b in zip(expected, found, strict=True):
            assert {t.device for t in b.values()} == {torch.zeros(0, device=TYPE).device}
            assert all(torch.equal(a[k], b[k].cpu()) for k in a)


def test_a_worker_forked_beside_cuda_and_dali_works(faces: Path) -> None:
    config = {"data": {"source": "folder", "root": faces}, "pipeline": STEPS}
    with gpupipe.load(config, engine="dali", device="gpu", batch_size=16) as dali:
        next(iter(dali))
        with gpupipe.load(
            config, engine="dataloader", workers=2, device="gpu", batch_size=16
        ) as loader:
            assert sum(len(b["label"]) for b in loader) == 60


def test_parity_of_cpu_and_gpu(faces: Path) -> None:
    checked = configs.read({"data": {"source": "folder", "root": faces}, "pipeline": "affine"})
    found = list(measure(checked, checked.source.index(), ["cpu", "gpu:0"], 32))
    assert {a.device for a in found} == {"cpu", "gpu:0"}
    assert all(a.psnr > 30 for a in found)


@pytest.mark.parametrize("engine", ["dali", "dataloader"])
def test_a_profile_on_a_gpu(faces: Path, engine: str) -> None:
    checked = configs.read(
        {"data": {"source": "folder", "root": faces}, "pipeline": "affine"},
        engine=engine,
        device="gpu",
        batch_size=16,
        workers=2,
    )
    found = profile.measure(checked, checked.source.index(), cores(), 1, 0.3, quiet)
    assert found.gpu_utilisation is not None
    assert 0 <= found.gpu_utilisation <= 1
    assert all(s.rate > 0 for s in found.stages)
    trained = training.measure(
        checked,
        checked.source.index(),
        "squeezenet1_1",
        training.model("squeezenet1_1"),
        1,
        0.3,
        quiet,
    )
    assert min(trained.fed + trained.replayed) > 0


def test_utilisation_sees_work() -> None:
    matrix = torch.ones(4096, 4096, device="cuda")
    with Load("gpu:0") as load:
        deadline = time.monotonic() + 3  # NVML's figure is of up to a second before
        while time.monotonic() < deadline:
            for _ in range(50):
                matrix = (matrix @ matrix).clamp(-1, 1)
            torch.cuda.synchronize()
    assert load.gpu is not None
    assert load.gpu > 0.1


def test_compare_on_a_gpu(faces: Path, tmp_path: Path) -> None:
    words = [
        f"data={{source: folder, root: {faces}}}",
        "batch_size=16",
        "--cpu-workers",
        "2",
        "--repeats",
        "2",
        "--batches",
        "10",
        "--max-diff",
        "3",
    ]
    command = [
        sys.executable,
        "-m",
        "gpupipe",
        "compare",
        "lfw",
        *words,
        "--json",
        "out.json",
        "--out",
        "report",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert [s["name"] for s in found["sides"]] == [
        "CPU engine",
        "DALI on GPU",
        "DALI on CPU",
        "DataLoader, 2 workers",
    ]
    assert found["machine"]["gpu"]
    assert "DALI on GPU" in (tmp_path / "report" / "report.html").read_text()
