"""The last steps of a pipeline that can run on whole uint8 batches, where those are received."""

from __future__ import annotations

from dataclasses import dataclass

from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import Spec


@dataclass(frozen=True)
class PipelineTail:
    """The steps that are left to the receiver of batches.

    Attributes:
        pipeline: The whole pipeline.
        numbers: The numbers of those steps among its entries.
        dtype: Dtype of the first field after them; None keeps the dtype that they make.
    """

    pipeline: Pipeline
    numbers: tuple[int, ...]
    dtype: str | None

    def at_epoch(self, epoch: int) -> tuple[Entry, ...]:
        """Return the steps of an epoch, in order."""
        entries = self.pipeline.at_epoch(epoch).entries
        return tuple(entries[n] for n in self.numbers)


def find_tail(pipeline: Pipeline) -> tuple[int, ...]:
    """Return the numbers of the last entries that can run on uint8 batches.

    Each field of a batch, such as a view, has last steps of its own.
    """
    return tuple(sorted(n for name in pipeline.outputs for n in _find_tail(pipeline, name)))


def find_larger_output(pipeline: Pipeline) -> Spec | None:
    """Return the spec of a main output that is not uint8, or None if all are."""
    specs = [pipeline.output_spec_of(name) for name in pipeline.main_outputs]
    return next((spec for spec in specs if not _is_uint8(spec)), None)


def _find_tail(pipeline: Pipeline, name: str) -> list[int]:
    """Return the numbers of the last steps on a field, if they can run on uint8 batches of it."""
    numbers = [n for n, entry in enumerate(pipeline.entries) if entry.field == name]
    tail: list[int] = []
    while numbers and pipeline.entries[numbers[-1]].step.can_run_on_batches:
        tail.append(numbers.pop())
    return tail if tail and _is_uint8(pipeline.entries[tail[-1]].input_spec) else []


def _is_uint8(spec: Spec) -> bool:
    return spec.dtype == "uint8" and not spec.encoded
