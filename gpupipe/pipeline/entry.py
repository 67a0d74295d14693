"""Entry: one step at its position in a list, which runs the step's code and checks it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.spec import Sizes, Spec
from gpupipe.errors import StepError
from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.step import BaseStep, NoLoweringError, Params, SampleIncompatibleError, Step
from gpupipe.runtime import plugins
from gpupipe.sampling import draws

_Step = TypeVar("_Step", bound=BaseStep)


def make_key(name: str, count: int) -> str:
    """Return the key of the step of this name that comes as number `count`, from 1."""
    return name if count == 1 else f"{name}_{count}"


@dataclass(frozen=True)
class BaseEntry(Generic[_Step]):
    """One step at its position in a pipeline or in the batch stage.

    Attributes:
        name: The step's name in YAML.
        key: The name, with a number if the step occurs again: "random_affine", "random_affine_2".
            It seeds the draws, so all fields that a step works on share them.
        step: The step, its short forms written out.
        where: The position in the YAML, for messages.
    """

    name: str
    key: str
    step: _Step
    where: str

    def sample(self, u: NDArray[np.float64], drawn_for: str) -> dict[str, NDArray[Any]]:
        """Return what the step's `sample` makes of uniform draws, (N, num_uniforms).

        Args:
            u: The draws.
            drawn_for: What they are for, in messages: "5 samples".

        Raises:
            StepError: If the step's `sample` raises, or returns arrays of another length.
        """
        with self.blame("sample()"):
            sampled = self.step.sample(u)
        for name, values in sampled.items():
            if np.shape(values)[:1] != (len(u),):
                shape = np.shape(values)
                raise self.wrong(f"its sample() made '{name}' of shape {shape} for {drawn_for}")
        return sampled

    def blame(self, call: str, *passed: type[Exception]) -> AbstractContextManager[None]:
        """Raise StepError for what the step's code raises, but for the exceptions `passed`."""
        return plugins.blamed(self.key, type(self.step), self.where, call, *passed)

    def wrong(self, what: str) -> StepError:
        """Return the error that says what is wrong with the step's code."""
        return plugins.step_wrong(self.key, type(self.step), self.where, what)


@dataclass(frozen=True)
class Entry(BaseEntry[Step]):
    """One step at its position in the pipeline, on one field; see BaseEntry.

    Attributes:
        input_spec: Shape, dtype and layout of the step's input.
        output_spec: Shape, dtype and layout of the step's output.
        field: The field that the step works on.
    """

    input_spec: Spec
    output_spec: Spec
    field: str

    def parameters(
        self,
        seed: int,
        epoch: int,
        ids: NDArray[np.int64],
        repeats: NDArray[np.int64] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Draw the step's parameters for a batch.

        Args:
            seed: The loader's seed.
            epoch: The epoch, from 0.
            ids: The samples' rows in the index, int64 (B,).
            repeats: How often each sample came before in the epoch, int64 (B,); None: never.

        Returns:
            Arrays by name, each with B as its first axis.

        Raises:
            StepError: If the step's `sample` raises, or returns arrays of another length.
        """
        uniform = draws.uniform(
            seed, epoch, ids, draws.stream(self.key), self.step.num_uniforms, repeats
        )
        return self.sample(uniform, f"{len(ids)} samples")

    def lower(self, image: Primitives, parameters: Params) -> None:
        """Apply the step to a batch by calling primitives of a back end.

        Raises:
            StepError: If the step's code fails.
            NoLoweringError: If the step does not run on that back end.
            SampleIncompatibleError: If it cannot process a sample.
        """
        with self.blame("lower()"):
            self.step.lower(image, parameters)

    def torch(self, image: Any, parameters: Params) -> Any:
        """Apply the step to one image in torch, and check the result against the step's spec.

        Raises:
            StepError: If the step's code fails, or its result differs from its spec.
            NoLoweringError: If the step does not run in torch.
            SampleIncompatibleError: If it cannot process the image.
            OSError, RuntimeError, ValueError: From the decoder, if the bytes are no image.
        """
        try:
            output = self.step.torch(image, parameters)
        except Exception:  # a context manager around each call would take more time than some steps
            decode_errors = (OSError, RuntimeError, ValueError) if self.input_spec.encoded else ()
            with self.blame("torch()", *decode_errors):
                raise
        if differs := self.output_spec.describe_mismatch(output, self._sizes):
            raise self.wrong(f"its torch() made {differs}")
        return output

    @cached_property
    def _sizes(self) -> Sizes:
        return self.output_spec.canonical_sizes

    def dump(self) -> dict[str, Any]:
        """Return the step's parameters as JSON values; raise StepError if that fails."""
        with self.blame("model_dump()"):
            return self.step.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """Return the parameters that count for the fingerprint; raise StepError if that fails.

        Parameters in `Step.added_later` that have their defaults are left out.
        """
        fields = type(self.step).model_fields
        return {
            name: value
            for name, value in self.dump().items()
            if name not in self.step.added_later or value != fields[name].default
        }

    def blame(self, call: str, *passed: type[Exception]) -> AbstractContextManager[None]:
        return super().blame(call, NoLoweringError, SampleIncompatibleError, *passed)
