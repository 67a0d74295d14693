"""The trial of an operator on small images: `dali` asks for it, and the DALI engine runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import Step
from gpupipe.runtime.registry import find_registration
from gpupipe.steps.dali_operators.operators import Operator


@dataclass(frozen=True)
class Trial:
    """What an operator makes of its input.

    Attributes:
        output_spec: The spec of its output.
        size: [height, width] of each output, with None where the input's is kept.
    """

    output_spec: Spec
    size: tuple[int | None, int | None]


class TryOperator(Protocol):
    """Runs an operator on small images."""

    def __call__(
        self, operator: Operator, make: Callable[..., Any], step: Step, input_spec: Spec
    ) -> Trial:
        """Run it.

        Args:
            operator: The operator.
            make: Adds it to a DALI pipeline: takes the pixels, a DataNode of layout HWC, and one
                DataNode per array that the step samples. Returns a DataNode.
            step: Samples the arguments.
            input_spec: The spec of the input: images.

        Raises:
            StepIncompatibleError: If the operator refuses such images, or does not make one image
                from each that depends on that image alone and has a size that is known beforehand.
        """


def find_trial() -> TryOperator:
    """Return the trial that the DALI engine registers."""
    registration = find_registration("dali")
    assert registration is not None and registration.try_operator is not None
    return registration.try_operator
