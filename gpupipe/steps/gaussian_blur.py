"""gaussian_blur: blur with a Gaussian of drawn width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator

from gpupipe.augment.color_step import ColorStep
from gpupipe.pipeline.spec_checks import describe_small
from gpupipe.pipeline.step import Params, Spec, StepIncompatibleError
from gpupipe.schema.field_types import (
    Positive,
    Side,
    check_list,
    check_ordered,
    is_number,
    should_be,
)

_KERNEL_WORDS = "one odd number, or [width, height], both odd"


def _kernel_size(value: Any) -> Any:
    sides = [value] if is_number(value) else check_list(value, (1, 2), _KERNEL_WORDS)
    return sides * (2 // len(sides))


def _check_odd(value: tuple[int, int]) -> tuple[int, int]:
    if not all(side % 2 for side in value):
        raise should_be(_KERNEL_WORDS)
    return value


def _sigma(value: Any) -> Any:
    words = "one number above 0, or [least, most], both above 0"
    sides = [value] if is_number(value) else check_list(value, (1, 2), words)
    return sides * (2 // len(sides))


KernelSize = Annotated[tuple[Side, Side], BeforeValidator(_kernel_size), AfterValidator(_check_odd)]
Sigma = Annotated[tuple[Positive, Positive], BeforeValidator(_sigma), AfterValidator(check_ordered)]


class GaussianBlur(ColorStep):
    """Blur with a Gaussian, as torchvision.transforms.v2.GaussianBlur.

    At its border the image is mirrored without repeating the last pixel. So it must have more than
    kernel_size // 2 pixels a side. The input must be an image of 1 or 3 channels in uint8, float16
    or float32.

    Attributes:
        kernel_size: The number of pixels that are averaged along x and y: one odd number, or
            [width, height].
        sigma: The standard deviation in pixels, drawn uniformly from [least, most]; or one number.
            The default is [0.1, 2.0].
    """

    kernel_size: KernelSize
    sigma: Sigma = (0.1, 2.0)

    example: ClassVar[Mapping[str, Any]] = {"kernel_size": 9, "sigma": [0.5, 4.0]}
    num_uniforms: ClassVar[int] = 1
    op: ClassVar[str] = "gaussian_blur"
    takes_any_values: ClassVar[bool] = True

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Return sigma: float64 (B,), in pixels."""
        least, most = self.sigma
        return {"sigma": least + (most - least) * u[:, 0]}

    def infer_color(self, input_spec: Spec) -> Spec:
        output_spec = super().infer_color(input_spec)
        if input_spec.size and self._is_small(input_spec.size):
            raise StepIncompatibleError(
                f"{describe_small('the blur', input_spec.size, self._min_size)}: write a smaller "
                "kernel_size"
            )
        return output_spec

    def op_values(self, p: Params) -> tuple[Any, ...]:
        sigma = np.stack([p["sigma"]] * 2, -1)
        return np.broadcast_to(np.array(self.kernel_size, np.int32), sigma.shape), sigma

    @property
    def _min_size(self) -> tuple[int, int]:
        """The smallest [height, width] whose mirrored border the kernel does not leave."""
        width, height = self.kernel_size
        return height // 2 + 1, width // 2 + 1

    def _is_small(self, size: Sequence[int]) -> bool:
        return any(n < least for n, least in zip(size, self._min_size, strict=True))
