"""An engine: decodes with Pillow, and runs the steps in torch, in the training process."""

import io
from collections.abc import Generator, Iterator, Sequence

import numpy as np
import torch
from PIL import Image

from gpupipe.dataset.columns import read_rows
from gpupipe.engines.base import Batch, DrawnStep, Engine, Job
from gpupipe.engines.batch import labels_and_values
from gpupipe.errors import EngineError, SampleError
from gpupipe.pipeline.entry import Entry
from gpupipe.sampling.sampler import Plan, Sampler


class PillowEngine(Engine):
    name = "pillow"
    settings = Sampler.settings

    def __init__(self, job: Job) -> None:
        self.device, self._job = "cpu", job

    @classmethod
    def on(cls, job: Job, device: str) -> "PillowEngine":
        if device not in ("cpu", "auto") or job.pipeline.outputs != ("image",):
            raise EngineError("engine pillow makes batches of one image field, on the CPU")
        return cls(job)

    @classmethod
    def can_run(cls, entry: Entry, device: str) -> bool:
        return entry.step.has_torch

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        for plan in plans:
            steps = self._job.steps_for(plan)["image"]
            images = [self._make_image(int(row), n, steps) for n, row in enumerate(plan.ids)]
            values = labels_and_values(self._job.index, plan, torch.device("cpu"))
            yield plan, {"image": torch.stack(images)} | values

    def _make_image(self, row: int, position: int, steps: Sequence[DrawnStep]) -> torch.Tensor:
        image = self._decode(row)
        for entry, parameters in steps[1:]:  # the first is decode
            image = entry.torch(image, {name: p[position] for name, p in parameters.items()})
        return image

    def _decode(self, row: int) -> torch.Tensor:
        (data,) = read_rows(self._job.index.columns["image"], np.array([row]))
        try:
            pixels = np.array(Image.open(io.BytesIO(data.tobytes())).convert("RGB"))
        except OSError as error:
            raise SampleError(self._job.index.location(row), str(error)) from error
        return torch.from_numpy(pixels).permute(2, 0, 1)

    def close(self) -> None:
        pass
