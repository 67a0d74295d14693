"""dali: run one of DALI's own operators."""

from functools import cached_property
from typing import Any, Self

import numpy as np
import pydantic
from pydantic import PrivateAttr, model_validator

from gpupipe.pipeline.spec_checks import check_image
from gpupipe.pipeline.step import (
    NoLoweringError,
    Params,
    Primitives,
    Sampled,
    Spec,
    Step,
    StepIncompatibleError,
    Uniforms,
)
from gpupipe.runtime.installation import install_command, is_installed
from gpupipe.runtime.registry import find_registration
from gpupipe.schema.field_types import wrong_key
from gpupipe.steps.dali_operators import operators
from gpupipe.steps.dali_operators.arguments import Arguments, read_arguments
from gpupipe.steps.dali_operators.operators import Operator, Trial


class Dali(Step):
    """Run one of DALI's own operators on each image.

    The step runs on the DALI engine alone: there is no torch lowering, and so no parity check. All
    parameters except `op` are arguments of the operator, with DALI's names, defaults and meaning.
    Names such as INTERP_LINEAR and FLOAT are written as text. An argument that DALI takes per
    sample may be drawn: {uniform: [min, max]}, {normal: [mean, std]}, {choice: [...]} or {flip: p}.
    If the argument is a whole number, a uniform draw includes both ends, and a normal one is
    rounded.

    When the pipeline is checked, the operator runs on small images, to find the size, dtype and
    channels of its output. If the operator has no CPU version, gpupipe assumes that it keeps all
    three, and checks this with the first batch.

    Attributes:
        op: The operator's name in nvidia.dali.fn, such as color_twist. The operator must take one
            image, return one, and draw no random numbers itself.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="allow")

    op: str

    example = {"op": "water", "ampl_x": 8.0, "ampl_y": 8.0, "mask": {"flip": 0.5}}
    runs_unknown_code = True

    _trials: dict[Spec, Trial] = PrivateAttr(default_factory=dict)
    """The Trial of the operator for each input spec; copies of the step share this dict."""

    @model_validator(mode="after")
    def _check_arguments(self) -> Self:
        if not is_installed("nvidia.dali"):
            command = install_command("cuda12")
            raise self._refuse_op(
                "it needs NVIDIA DALI, which is not installed: on Linux, run "
                f"{command}; for CUDA 13 write cuda13"
            )
        try:
            self.operator  # noqa: B018  # raises if there is none
        except LookupError as e:
            raise self._refuse_op(str(e.args[0])) from None
        if self.arguments.errors:
            raise pydantic.ValidationError.from_exception_data("dali", self.arguments.errors)
        return self

    def _refuse_op(self, message: str) -> pydantic.ValidationError:
        details: Any = {"type": wrong_key(message), "loc": ("op",), "input": self.op}
        return pydantic.ValidationError.from_exception_data("dali", [details])

    @cached_property
    def operator(self) -> Operator:
        return operators.find(self.op)

    @cached_property
    def arguments(self) -> Arguments:
        return read_arguments(self.operator, self.model_extra or {})

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """The number of uniform draws that one sample needs."""
        return self.arguments.num_uniforms

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the arguments that have a distribution.

        Returns:
            A dict from the name of each drawn argument to an array for B samples: int32 for whole
            numbers, else float32. Its shape is (B,), or (B, n) if a value is a list of n numbers.
        """
        sampled, first = {}, 0
        for name, draw in self.arguments.draws.items():
            values = draw(u[:, first : first + draw.num_uniforms])
            whole = self.operator.arguments[name].kind == "whole"
            sampled[name] = values.astype(np.int32 if whole else np.float32)
            first += draw.num_uniforms
        return sampled

    def adapt_to_mask(self) -> Self:
        nearest = {"interp_type": "INTERP_NN"} if "interp_type" in self.operator.arguments else {}
        return type(self)(op=self.op, **((self.model_extra or {}) | nearest))

    def infer_spec(self, input_spec: Spec) -> Spec:
        return self._try(input_spec).output_spec

    def lower(self, image: Primitives, p: Params) -> None:
        fixed = np.array(self._try(image.spec).size, np.float64)  # NaN: as in the input
        changes = not np.isnan(fixed).all()
        size = np.where(np.isnan(fixed), image.size, fixed) if changes else None
        values = [p[name] for name in self.arguments.draws]
        image.apply(self.op, self._make, *values, size=size)

    def _make(self, pixels: Any, *nodes: Any) -> Any:
        """Add the operator to a DALI pipeline, and return its output.

        Args:
            pixels: The images, as a DALI node.
            *nodes: The drawn arguments as DALI nodes, in the order of `self.arguments.draws`.
        """
        if pixels.device not in self.operator.backends:
            raise NoLoweringError(
                f"DALI has no {pixels.device.upper()} version of {self.op}: set 'device: "
                f"{self.operator.backends[0]}', or leave the step out"
            )
        drawn = dict(zip(self.arguments.draws, nodes, strict=True))
        return self.operator.function(pixels, **self.arguments.constants, **drawn)

    def _try(self, input_spec: Spec) -> Trial:
        """Return the output spec and size for an input spec.

        The first call with a spec runs the operator on small images, if it has a CPU version.

        Raises:
            StepIncompatibleError: The operator cannot process an input with this spec.
        """
        if input_spec not in self._trials:
            self._trials[input_spec] = self._run_trial(check_image(input_spec))
        return self._trials[input_spec]

    def _run_trial(self, input_spec: Spec) -> Trial:
        if "cpu" in self.operator.backends:
            engine = find_registration("dali")
            assert engine is not None and engine.try_operator is not None
            trial: Trial = engine.try_operator(self.operator, self._make, self, input_spec)
            return trial
        if input_spec.kind == "mask":
            raise StepIncompatibleError(
                f"{self.op} runs on a GPU alone, and cannot be tried on a mask: leave the mask out "
                "of 'on'"
            )
        return Trial(input_spec, (None, None))
