"""Which GPU a rank takes, and where DALI's threads run beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gpupipe
from gpupipe.runtime.devices import resolve

LAUNCHERS = {
    "torchrun": {"LOCAL_RANK": "1"},
    "mpirun": {"OMPI_COMM_WORLD_LOCAL_RANK": "1"},
    "srun": {"SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"},
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_local_rank_tells_the_gpu(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_STEP_ID", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in LAUNCHERS[launcher].items():
        monkeypatch.setenv(name, value)
    assert resolve("gpu") == resolve("auto") == 1 % torch.cuda.device_count()


ON_THE_LAST_GPU = """
import json, sys
import torch, gpupipe
last = torch.cuda.device_count() - 1
with gpupipe.load(json.loads(sys.argv[1]), device=f"gpu:{last}") as loader:
    for _ in range(2):
        for batch in loader:
            assert batch["image"].device.index == last
print([torch._C._cuda_hasPrimaryContext(n) for n in range(last + 1)])
"""


@pytest.mark.parametrize("engine", ["dali", "cpu", "dataloader"])
def test_a_rank_has_a_context_on_its_own_gpu_alone(faces: Path, engine: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    config = {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": "affine",
        "loader": {"engine": engine, "batch_size": 16, "threads": 2, "workers": 2},
    }
    command = [sys.executable, "-c", ON_THE_LAST_GPU, json.dumps(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([False] * (torch.cuda.device_count() - 1) + [True])


def test_affinity_is_taken(faces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver names no core near the GPU that this process may use, DALI says so and binds
    nothing.
    """
    monkeypatch.delenv("DALI_AFFINITY_MASK", raising=False)
    config = {"data": {"source": "folder", "root": faces}, "pipeline": "affine"}
    with gpupipe.load(config, device="gpu", threads=2, batch_size=16, set_affinity=True) as loader:
        assert sum(len(batch["label"]) for batch in loader) == 60
    assert os.sched_getaffinity(0), "the process itself stays where it was"
