"""The batch stage on a GPU: as on the CPU, without waiting, and the same after a resume."""

from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from gpupipe.batch_stage.mixer import BatchMixer
from helpers.either_device import DEVICE, TYPE
from helpers.full_product import IS_FULL
from helpers.sync_waits import waits_of_this_thread

OWN = {
    "dali": {"hw_decoder_load": 0.0},
    "dataloader": {"workers": 2 if DEVICE == "gpu" else 0},
}
"""Where all JPEGs go to one decoder, a run repeats to the bit."""
LOADER: dict[str, Any] = {
    "device": DEVICE,
    "batch_size": 7,
    "ids": True,
    "subset": 1.0 if DEVICE == "gpu" or IS_FULL else 0.35,
}
STEPS: list[Any] = ["mixup", "cutmix", {"one_hot": {"label_smoothing": 0.1}}]
CHOICE = {"random_choice": {"transforms": STEPS}}


def config_of(faces: Path, engine: str, *steps: Any) -> dict[str, Any]:
    return {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": "affine",
        "batch": list(steps),
        "loader": {"engine": engine, **LOADER, **OWN[engine]},
    }


def batches(config: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    with gpupipe.load(config) as loader:
        return [{name: tensor.clone() for name, tensor in batch.items()} for batch in loader]


@pytest.mark.either_device
@pytest.mark.parametrize("engine", OWN)
@pytest.mark.parametrize("step", [*STEPS, CHOICE], ids=str)
def test_a_gpu_mixes_as_the_cpu_does(faces: Path, engine: str, step: Any) -> None:
    """The batches of a GPU, copied and mixed on the CPU, to a unit in the last place."""
    config = config_of(faces, engine, step)
    with gpupipe.load(config) as loader:
        mixer = BatchMixer(loader.mixer.stage, 0, loader.index.classes)
    mixed, plain = batches(config), batches(config | {"batch": []})
    assert len(mixed) == len(plain) > 1
    for a, b in zip(mixed, plain, strict=True):
        assert a["image"].device.type == TYPE
        assert a["label"].device.type == TYPE
        on_cpu = {name: tensor.cpu() for name, tensor in b.items()}
        expected = mixer.mix(0, on_cpu["id"].numpy(), on_cpu)
        assert torch.allclose(a["image"].cpu(), expected["image"], atol=1e-6)
        assert torch.allclose(a["label"].cpu(), expected["label"], atol=1e-6)


@pytest.mark.either_device
@pytest.mark.parametrize("engine", OWN)
def test_a_resume_repeats_the_mixes_bit_for_bit(faces: Path, engine: str) -> None:
    config = config_of(faces, engine, CHOICE)
    with gpupipe.load(config) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = [(b["image"].clone(), b["label"].clone()) for b in iterator]
    with gpupipe.load(config) as loader:
        loader.load_state_dict(state)
        for (image, label), batch in zip(rest, loader, strict=True):
            assert torch.equal(image, batch["image"])
            assert torch.equal(label, batch["label"])


@pytest.mark.parametrize("step", [*STEPS, CHOICE], ids=str)
def test_the_cpu_does_not_wait_for_the_gpu(faces: Path, step: Any) -> None:
    with gpupipe.load(config_of(faces, "dataloader", step)) as loader:
        mixer = loader.mixer
        index = loader.index
    image = torch.rand(16, 3, 32, 32, device="cuda")
    label = torch.arange(16, device="cuda") % len(index.classes)
    ids = torch.arange(16).numpy()
    mixer.mix(0, ids, {"image": image, "label": label})
    torch.cuda.synchronize()
    with waits_of_this_thread() as waits:
        for epoch in range(8):
            mixer.mix(epoch, ids, {"image": image, "label": label})
    assert not waits
