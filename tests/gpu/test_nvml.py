"""NVML is asked of the GPU that CUDA means, whatever CUDA_VISIBLE_DEVICES says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gpupipe
from gpupipe.bench.machine import synchronise
from gpupipe.runtime import devices

SAY_UUIDS = """
import torch
from gpupipe.runtime import devices
with devices.nvml_session() as library:
    for n in range(torch.cuda.device_count()):
        print(library.nvmlDeviceGetUUID(devices.handle_of(library, n)))
"""


def uuids(**environment: str) -> list[str]:
    """By CUDA's numbers, what NVML says of each handle, without the prefix."""
    command = [sys.executable, "-c", SAY_UUIDS]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return [line[4:] for line in done.stdout.split()]


def test_each_gpu_of_cuda_has_its_own_handle() -> None:
    assert uuids() == [
        str(torch.cuda.get_device_properties(n).uuid) for n in range(torch.cuda.device_count())
    ]


def test_numbers_follow_cuda_visible_devices() -> None:
    everyone = uuids(CUDA_VISIBLE_DEVICES=",".join(map(str, range(torch.cuda.device_count()))))
    last = torch.cuda.device_count() - 1
    assert uuids(CUDA_VISIBLE_DEVICES=str(last)) == [everyone[last]]


def test_the_driver_and_the_cards_are_told() -> None:
    driver = devices.find_driver()
    assert driver is not None
    assert driver.version[0].isdigit(), driver.version
    assert len(driver.cards) >= 1


def test_the_loaders_gpu_is_waited_for_and_not_the_current_one(faces: Path) -> None:
    last = torch.cuda.device_count() - 1
    if last == 0:
        pytest.skip("needs two GPUs: torch's current one and the loader's")
    config = {"data": {"source": "folder", "root": faces}, "pipeline": ["decode"]}
    with gpupipe.load(config, device=f"gpu:{last}", batch_size=16) as loader, torch.cuda.device(0):
        matrix = torch.ones(4096, 4096, device=f"cuda:{last}")
        for _ in range(50):
            matrix = (matrix @ matrix).clamp(-1, 1)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(last))
        synchronise(loader)
        assert done.query()
