"""Bases of steps that change colours and leave masks alone.

`ColorStep` runs one or more functions of color_ops.py. `RandomColorStep` runs one function with a
given probability.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment import color_ops
from gpupipe.augment.color_ops import COLOR_OPS
from gpupipe.pipeline.spec_checks import DTYPES_TAKEN, check_color, check_decoded
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Step, Uniforms
from gpupipe.pipeline.tensors import in_float32
from gpupipe.schema.field_types import ORDERED, NotNegative, Probability, two_numbers

FactorPair = Annotated[
    tuple[NotNegative, NotNegative], two_numbers("[min, max], both at least 0"), ORDERED
]
"""[min, max] of a factor."""


class ColorStep(Step):
    """The base of steps that change colours. On a mask they do nothing, as in torchvision.

    A subclass that applies one function defines `op`. Each argument of the function is a field of
    the subclass, or an array that the subclass's `sample` returns, with the argument's name. Where
    that does not fit, the subclass overrides `op_values`. A subclass that applies several functions
    overrides `lower_color` and `torch_color`. A subclass that accepts fewer inputs overrides
    `infer_color`.

    Attributes:
        op: The function, a name of `COLOR_OPS`; "" for none.
        takes_any_values: Whether the step also takes numbers outside the usual range of the dtype.
    """

    op: ClassVar[str] = ""
    takes_any_values: ClassVar[bool] = False

    def infer_color(self, input_spec: Spec) -> Spec:
        """Return the spec of the output: by default the input's, after a check of its colours.

        Raises:
            StepIncompatibleError: If the step cannot process the input.
        """
        dtypes = COLOR_OPS[self.op].dtypes if self.op else DTYPES_TAKEN["color"]
        return check_color(input_spec, dtypes, self.takes_any_values)

    def op_values(self, p: Params) -> tuple[Any, ...]:
        """Return the arguments of `op`.

        By default, each argument is the array in `p` with the argument's name. If `p` has none, it
        is the step's field of that name.

        Args:
            p: For a batch, the arrays that `sample` returned, (B, ...). For one image, the image's
                entry of each array, (...).

        Returns:
            For each argument, an array as in `p`, or a number that all samples share.
        """
        names = [value.name for value in COLOR_OPS[self.op].values]
        return tuple(p[name] if name in p else getattr(self, name) for name in names)

    def lower_color(self, image: Primitives, p: Params) -> None:
        """Change the colours of a batch of images by calling primitives."""
        shape = image.present.shape
        values = self.op_values(p)
        image.color(self.op, *(v if np.ndim(v) else np.full(shape, v) for v in values))

    def torch_color(self, image: Any, p: Params) -> Any:
        """Change the colours of one image (C, H, W) in torch; float16 images arrive as float32."""
        values = [np.asarray(value).tolist() for value in self.op_values(p)]
        return color_ops.apply(self.op, image, values)

    def infer_spec(self, input_spec: Spec) -> Spec:
        if input_spec.kind == "mask":
            return check_decoded(input_spec)
        return self.infer_color(input_spec)

    def lower(self, image: Primitives, p: Params) -> None:
        if self._kind != "mask":
            self.lower_color(image, p)

    def torch(self, image: Any, p: Params) -> Any:
        if self._kind == "mask":
            return image
        return in_float32(image, lambda pixels: self.torch_color(pixels, p))


class RandomColorStep(ColorStep):
    """The base of steps that apply one colour function with a given probability.

    The samples that are left alone cost no time.

    Attributes:
        p: The probability that the function is applied, 0 to 1.
    """

    p: Probability = 0.5

    num_uniforms = 1

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `runs`, int32 (B,), is 1 for samples to change and 0 for the others."""
        return {"runs": (u[:, 0] < self.p).astype(np.int32)}

    def lower_color(self, image: Primitives, p: Params) -> None:
        run = super().lower_color
        apply_where(p["runs"], image, lambda part: run(part, p))

    def torch_color(self, image: Any, p: Params) -> Any:
        return super().torch_color(image, p) if p["runs"] else image


def apply_where(
    runs: NDArray[np.int32], image: Primitives, run: Callable[[Primitives], None]
) -> None:
    """Call `run` on the samples whose entry of `runs`, (B,), is 1; leave the others alone."""
    image.switch(runs, [lambda part: None, run])
