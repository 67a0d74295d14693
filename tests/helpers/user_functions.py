"""Functions and classes as users write them, for the step python."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch

from gpupipe.pipeline.step import SampleIncompatibleError


def stamp(image: torch.Tensor, rng: torch.Generator, strength: float = 0.5) -> torch.Tensor:
    """Darkens each value by its own factor, in place."""
    noise = torch.rand(image.shape, generator=rng)
    return image.copy_((image * (1 - strength * noise)).to(image.dtype))


def speckle(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Random levels."""
    return torch.from_numpy(rng.integers(0, 256, tuple(image.shape), dtype=np.uint8))


def draws_of_torch(image: torch.Tensor) -> torch.Tensor:
    return (image * torch.rand(1)).to(image.dtype)


def draws_of_numpy(image: torch.Tensor) -> torch.Tensor:
    return (image * np.random.rand()).to(image.dtype)  # as users do


def draws_of_python(image: torch.Tensor) -> torch.Tensor:
    return (image * random.random()).to(image.dtype)


def draws_of_its_own(image: torch.Tensor) -> torch.Tensor:
    return (image * np.random.default_rng().random()).to(image.dtype)


def halve(image: torch.Tensor) -> torch.Tensor:
    """Gray floats from 0 to 1, of half the height and width."""
    return image.float()[:1, ::2, ::2] / 255


def trim(image: torch.Tensor) -> torch.Tensor:
    return image[:, :32, :32]


def refuse_dark(image: torch.Tensor) -> torch.Tensor:
    if image.float().mean() < 60:
        raise LookupError("it is dark")
    return image


def cut_dark(image: torch.Tensor) -> torch.Tensor:
    return image[:, 1:] if image.float().mean() < 60 else image


def to_array(image: torch.Tensor) -> Any:
    return image.numpy()


class Divide:
    """Divides by a number; counts how often it was constructed."""

    constructed = 0

    def __init__(self, by: int) -> None:
        type(self).constructed += 1
        self.by = by

    def __call__(self, sample: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: image // self.by for name, image in sample.items()}


def draws_of_all(image: torch.Tensor) -> torch.Tensor:
    """Draws from the global generators of torch, NumPy and Python, as most callables do."""
    factor = torch.rand(1).item() * np.random.rand() * random.random()
    return (image * factor**0.2).to(image.dtype)


def name_process(image: torch.Tensor) -> torch.Tensor:
    """Fills the image with the number of the process that called it."""
    return torch.full(image.shape, os.getpid(), dtype=torch.int64)


def work(image: torch.Tensor) -> torch.Tensor:
    """Holds Python's lock for a while."""
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass
    return name_process(image)


def hang_if_dark(image: torch.Tensor) -> torch.Tensor:
    while image.float().mean() < 60:
        time.sleep(0.1)
    return image


def note_and_hang_if_dark(image: torch.Tensor, log: str) -> torch.Tensor:
    if image.float().mean() < 60:
        with open(log, "a") as file:
            file.write("hung\n")
    return hang_if_dark(image)


def exit_if_dark(image: torch.Tensor) -> torch.Tensor:
    if image.float().mean() < 60:
        os._exit(3)
    return image


def leave_if_dark(image: torch.Tensor) -> torch.Tensor:
    if image.float().mean() < 60:
        sys.exit("it is dark")
    return image


def cancel_if_dark(image: torch.Tensor) -> torch.Tensor:
    if image.float().mean() < 60:
        raise asyncio.CancelledError("it is dark")  # a BaseException
    return image


def crash_if_dark(image: torch.Tensor) -> torch.Tensor:
    if image.float().mean() < 60:
        os.kill(os.getpid(), signal.SIGSEGV)
    return image


def fork_if_dark(image: torch.Tensor) -> torch.Tensor:
    if image.float().mean() < 60:
        os.fork()
    return image


def skip_if_dark(image: torch.Tensor) -> torch.Tensor:
    if image.float().mean() < 60:
        raise SampleIncompatibleError("it is dark")
    return image


def misbehave(image: torch.Tensor) -> Any:
    """Calls the function whose number is the first level."""
    return MISBEHAVIOURS[int(image[0, 0, 0])](image)


MISBEHAVIOURS = [
    refuse_dark,
    hang_if_dark,
    exit_if_dark,
    leave_if_dark,
    crash_if_dark,
    fork_if_dark,
    skip_if_dark,
    to_array,
    torch.clone,
]
KEPT: list[torch.Tensor] = []


def keep(image: torch.Tensor) -> torch.Tensor:
    """Keeps its image, and gives back a view."""
    KEPT.append(image)
    return image[:, 1:]


def start_program(image: torch.Tensor) -> torch.Tensor:
    print("of the function")
    subprocess.run([sys.executable, "-c", "print('of its program')"], check=True)
    return image.to(torch.bfloat16)
