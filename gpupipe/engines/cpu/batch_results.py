"""The results of the batches of a run, and the errors that end it."""

from dataclasses import dataclass, field
from threading import Lock

import torch

from gpupipe.annotations.batch_annotations import BatchAnnotations
from gpupipe.engines.base import Batch
from gpupipe.engines.batch import Shapes

CopiedFields = tuple[Batch, torch.Event]
"""Fields of a batch on a GPU, and the CUDA event after their copies, which may still run."""


@dataclass
class BatchResult:
    """The delivered tensors of a batch, and the samples that failed.

    Attributes:
        fields: Tensors (B, ...) of the samples that did not fail, by field; or their elements, such
            as "image.values", if shapes may differ and are not padded. Empty if all failed, if the
            shapes differ and may not, if nothing is delivered, or if there is a `batch`.
        failed: Why each failed sample failed, by its position in the plan.
        shapes: The shapes of the samples that did not fail, by field; {} if `loader.shapes` is
            "equal" and all are.
        on_gpu: The copies of `fields` on the GPU, and their CUDA event; None if there are none.
        annotations: The boxes and points of the samples that did not fail; None without any.
        batch: The mixed batch, in place of `fields`; empty if the batch stage has not run.
    """

    fields: dict[str, torch.Tensor] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    shapes: Shapes = field(default_factory=dict)
    on_gpu: CopiedFields | None = None
    annotations: BatchAnnotations | None = None
    batch: Batch = field(default_factory=dict)


class Outcome:
    """The result of a batch in flight, or its error. One thread waits for it.

    A Future, with its Condition, holds the GIL several times as long.
    """

    def __init__(self) -> None:
        self._value: BatchResult | Exception | None = None
        self._is_set = Lock()
        """Held until the value is set."""
        self._is_set.acquire()

    def set(self, value: BatchResult | Exception) -> None:
        """End the waiting. Called once, on any thread."""
        self._value = value
        self._is_set.release()

    def wait(self) -> BatchResult | Exception:
        """Wait for the result or the error, and return it."""
        if self._value is None:  # else Ctrl-C right after the lock would make the next call wait
            self._is_set.acquire()
        assert self._value is not None
        return self._value

    def get(self) -> BatchResult:
        """Wait for the result, and return it. Raise the error, if it is one."""
        value = self.wait()
        if isinstance(value, Exception):
            raise value
        return value


@dataclass
class RunFailures:
    """The first sample that ends a run, which its batches share. Later samples need not run.

    Attributes:
        num_started: How many batches of the run were started.
        first: The number of a batch in the run, and a position in its plan; None without a failure.
    """

    num_started: int = 0
    first: tuple[int, int] | None = None

    def record(self, batch: int, row: int) -> None:
        if self.first is None or (batch, row) < self.first:
            self.first = batch, row

    def is_before(self, batch: int, row: int) -> bool:
        """Return whether a sample before this one ends the run."""
        return self.first is not None and self.first < (batch, row)
