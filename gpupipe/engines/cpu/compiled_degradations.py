"""Kernels of the extensions for noise, elastic transforms and the JPEG codec.

They take images of uint8, and the first two also of float32, with 1 to 4 channels, in place of the
reference kernels in `kernels`. A sample that an extension cannot do runs there.
"""

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment import noise
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.compiled_kernels import stage_kernel
from gpupipe.engines.cpu.patterns import Match
from gpupipe.engines.cpu.program import Kernel, Rule, Stage
from gpupipe.runtime.installation import find_extension

_DTYPES = ("uint8", "float32")
_MAX_CHANNELS = 4
_JPEG = "jpeg"
"""The name of the colour function that encodes an image as a JPEG and decodes it again."""
_extension = find_extension()
_jpeg = find_extension("_jpeg")


def _can_run(op: ops.Op) -> bool:
    return op.spec.dtype in _DTYPES and op.spec.channels in range(1, _MAX_CHANNELS + 1)


def _bind_noise(match: Match) -> Kernel | None:
    op = match[ops.AddNoiseOp]
    if not _can_run(op):
        return None
    factor, mean = noise.scale_noise(op.mean, op.sigma, op.spec.dtype)

    def create() -> Stage:
        return Stage(_extension.noise_stage(_as_seeds(op.seeds), factor, mean, op.clip))

    return stage_kernel("kernels.noise", create)


def _bind_elastic(match: Match) -> Kernel | None:
    op = match[ops.ElasticOp]
    if not _can_run(op):
        return None
    fill = tuple(np.resize(op.fill, _MAX_CHANNELS).tolist())  # repeats one number for all channels
    is_bilinear = op.interpolation == "bilinear"

    def create() -> Stage:
        how = op.displacements.arguments, is_bilinear, fill
        return Stage(_extension.elastic_stage(_as_seeds(op.seeds), *how))

    return stage_kernel("kernels.elastic", create)


def _as_seeds(seeds: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.ascontiguousarray(seeds, np.int64)


def _bind_jpeg(match: Match) -> Kernel | None:
    op = match[ops.ColorOp]
    if op.name != _JPEG or op.spec.dtype != "uint8":
        return None
    (quality,) = op.values
    qualities = np.ascontiguousarray(quality, np.int64)
    return stage_kernel("jpeg", lambda: Stage(_jpeg.jpeg_stage(qualities)))


def create_rules() -> list[Rule]:
    """Return the rules of the extensions that are built and on."""
    if _extension is None:
        return []
    rules = [Rule((ops.AddNoiseOp,), _bind_noise), Rule((ops.ElasticOp,), _bind_elastic)]
    return rules if _jpeg is None else [*rules, Rule((ops.ColorOp,), _bind_jpeg)]
