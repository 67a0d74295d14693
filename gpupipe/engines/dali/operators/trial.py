"""Runs DALI operators on synthetic images, to learn what they make and whether they work.

`try_operator` finds the size, dtype and layout of an operator's output, which DALI's schema does
not describe. So when a pipeline is checked, the operator runs on DALI's CPU back end, on images of
two sizes and with extreme draws. The trial takes a few milliseconds and needs no GPU.

`KnownGood` decodes a valid JPEG after a sample has failed. If that fails too, the machine is to
blame.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types
from PIL import Image

from gpupipe.dataset.spec import Spec
from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.bad_samples import find_cause
from gpupipe.engines.dali.operators import ops
from gpupipe.engines.dali.operators.dtypes import dali_type
from gpupipe.errors import EngineError
from gpupipe.formats.npy import DTYPES
from gpupipe.pipeline.step import Step, StepIncompatibleError
from gpupipe.runtime.failures import keep_if_gpu_failed, machine_failure
from gpupipe.sampling import draws
from gpupipe.steps.dali_operators.operators import Operator, Trial

Images = list[NDArray[Any]]
Sampled = Mapping[str, NDArray[Any]]

_SIZES = (((120, 160), (165, 126)), ((1120, 1040), (1040, 1160)))
"""[height, width] of small images, and of large images for operators that refuse small ones."""
_ALMOST_ONE = 1.0 - 2.0**-20
"""The largest draw; as the draw of a normal distribution it is 5.3 standard deviations away."""
_TILE = 64
_LABELS = (0, 1, 2, 5)
_KNOWN_GOOD_SIDE = 32
_SIZE_ARGUMENTS = ("size", "keep_size", "resize_x", "crop", "shape")


def try_operator(
    operator: Operator, make: Callable[..., Any], step: Step, input_spec: Spec
) -> Trial:
    """Run an operator on synthetic images, and return the spec and size of its outputs.

    Args:
        operator: The operator.
        make: Adds the operator to a DALI pipeline. It takes the pixels, a DataNode of layout HWC,
            and one DataNode per array that the step samples. It returns a DataNode.
        step: The step, whose `sample` draws the arguments.
        input_spec: The spec of the images.

    Raises:
        StepIncompatibleError: If the operator refuses such images. Also if an output is no image,
            depends on other images of the batch, or has a size that cannot be predicted.
    """
    refusal: StepIncompatibleError | None = None
    for sizes in _SIZES:
        images = _make_images(input_spec, sizes)
        u = draws.uniform(0, 1, np.arange(len(images)), draws.stream("trial"), step.num_uniforms)
        u[:3] = np.array([[0.0], [_ALMOST_ONE], [0.5]])  # the extreme draws, before random ones
        try:
            outputs, layout = _run(make, images, step.sample(u))
            alone, _ = _run(make, images[:1], step.sample(u[:1]))
        except (RuntimeError, TypeError, ValueError) as e:
            cause = find_cause(str(e)).removesuffix(".")
            refusal = refusal or StepIncompatibleError(
                f"DALI refuses {operator.name} on images like {input_spec}: {cause}: change its "
                "arguments, or convert the images before it"
            )
            continue
        _check_samples(operator.name, outputs, alone[0], images, input_spec)
        return _describe(operator, images, outputs, layout, input_spec)
    assert refusal is not None
    raise refusal


def _make_images(spec: Spec, sizes: Sequence[tuple[int, int]]) -> Images:
    """Return six images (H, W, C) that match `spec`, of two sizes unless the spec fixes one."""
    u = draws.uniform(0, 0, np.arange(_TILE), draws.stream("trial"), _TILE * (spec.channels or 1))
    tile = u.reshape(_TILE, _TILE, -1)
    if spec.kind == "mask":
        tile = np.take(_LABELS, (tile * len(_LABELS)).astype(int))
    elif not spec.dtype.startswith("float"):
        tile = tile * (2.0 if spec.dtype == "bool" else 127.0)
    images = []
    for n in range(6):
        pairs = zip(spec.sides, sizes[n % 2], spec.at_least, strict=True)
        height, width = (fixed or max(side, bound) for fixed, side, bound in pairs)
        repeats = (height // _TILE + 1, width // _TILE + 1, 1)
        shifted = np.roll(tile, 7 * n, axis=1)
        images.append(np.tile(shifted, repeats)[:height, :width].astype(spec.dtype))
    return images


def _run(make: Callable[..., Any], images: Images, sampled: Sampled) -> tuple[Images, str]:
    """Run a pipeline of one operator; return the outputs and their layout.

    Raises:
        RuntimeError, TypeError, ValueError: DALI refuses the operator, its arguments or the images.
        ValueError: The operator has several outputs.
    """
    arrays = [np.ascontiguousarray(values) for values in sampled.values()]
    pipe: Any = Pipeline(len(images), 1, None, prefetch_queue_depth=1, exec_dynamic=True)
    inputs: list[tuple[Any, str]] = [(images, "HWC"), *((array, "") for array in arrays)]
    with pipe:
        pixels, *nodes = (
            fn.external_source(
                repeat(data),
                batch=True,
                dtype=dali_type(data[0].dtype.name),
                ndim=data[0].ndim,
                layout=layout,
            )
            for data, layout in inputs
        )
        output = make(pixels, *nodes)
        if not hasattr(output, "source"):
            raise ValueError(f"it has {len(output)} outputs, and not one")
        pipe.set_outputs(output)
    pipe.build()
    (output,) = pipe.run()
    dtype = np.dtype(types.to_numpy_type(output.dtype))
    outputs = [np.array(output[n]).view(dtype) for n in range(len(images))]
    return outputs, str(output.layout())


def _check_samples(
    name: str, outputs: Images, alone: NDArray[Any], images: Images, spec: Spec
) -> None:
    """Raise StepIncompatibleError if an output depends on other images, or a mask gets new values.

    `alone` is the output of the first image when it was the only one in its batch.
    """
    if not np.array_equal(outputs[0], alone, equal_nan=alone.dtype.kind == "f"):
        raise StepIncompatibleError(
            f"what {name} makes of an image depends on the other images of its batch, and so on "
            "the batch size: write an operator that works on each image alone"
        )
    if spec.kind == "mask" and not all(
        np.isin(output, (*np.unique(image), 0)).all()
        for output, image in zip(outputs, images, strict=True)
    ):
        raise StepIncompatibleError(
            f"{name} makes numbers that are not in the mask, which are no classes: leave the mask "
            "out of 'on'"
        )


def _describe(
    operator: Operator, images: Images, outputs: Images, layout: str, input_spec: Spec
) -> Trial:
    """Return the spec and size of the outputs, or raise StepIncompatibleError if they are unfit."""
    name, arguments = operator.name, operator.arguments
    if any(output.ndim != 3 for output in outputs) or layout != "HWC":
        kind = f"an array with the layout {layout!r}" if layout else "an array without a layout"
        advice = "write 'output_layout: HWC'" if "output_layout" in arguments else "leave it out"
        raise StepIncompatibleError(f"{name} makes {kind}, and no image (HWC): {advice}")
    channels, dtype = {output.shape[2] for output in outputs}, outputs[0].dtype.name
    adds_channels = "C" not in input_spec.layout and channels != {1}
    if len(channels) > 1 or dtype not in DTYPES or adds_channels:
        raise StepIncompatibleError(
            f"{name} makes images of {sorted(channels)} channels in {dtype}: leave it out"
        )
    size = tuple(_find_size(images, outputs, axis) for axis in (0, 1))
    if -1 in size:
        names = [f"'{argument}'" for argument in _SIZE_ARGUMENTS if argument in arguments]
        advice = f"set its argument {' or '.join(names)}" if names else "leave it out"
        raise StepIncompatibleError(
            f"the size of what {name} makes depends on the image or the draws, so that later "
            f"steps cannot know it: {advice}"
        )
    sides = [fixed or side for fixed, side in zip(size, input_spec.sides, strict=True)]
    bound = tuple(fixed or side for fixed, side in zip(size, input_spec.at_least, strict=True))
    is_kept = input_spec.channels is None and channels == {images[0].shape[2]}
    spec = input_spec.with_size(sides, bound).with_channels(None if is_kept else channels.pop())
    return Trial(replace(spec, dtype=dtype), (size[0], size[1]))


def _find_size(images: Images, outputs: Images, axis: int) -> int | None:
    """Return the size along an axis that all outputs have.

    Return None if each output has the size of its image, and -1 if the outputs differ otherwise.
    """
    sides = [output.shape[axis] for output in outputs]
    if sides == [image.shape[axis] for image in images]:
        return None
    return sides[0] if len(set(sides)) == 1 else -1


class KnownGood:
    """Decodes a small valid JPEG on the engine's device, to tell a bad sample from a bad machine.

    The first check builds a DALI pipeline and keeps it. Later checks take 0.1 ms on a CPU.

    Args:
        device_id: The GPU's number, or None for DALI's CPU back end.
    """

    def __init__(self, device_id: int | None) -> None:
        self._device_id = device_id
        self._pipe: Any = None

    def check(self, message: str) -> None:
        """Raise EngineError if DALI cannot decode the valid JPEG: then the machine is to blame.

        Args:
            message: The error message of the sample that has failed before this check.
        """
        try:
            self._decode()
        except RuntimeError as e:
            self.close()
            first, why = (find_cause(text).rstrip(" :") for text in (message, str(e)))
            raise EngineError(
                "DALI cannot decode an image that nothing is wrong with "
                f"({machine_failure(e) or why}), so that no sample is "
                f"to blame for '{first}': `gpupipe doctor` looks at the machine"
            ) from e

    def close(self) -> None:
        """Release the pipeline. Idempotent."""
        keep_if_gpu_failed(self._device_id, self._pipe)
        self._pipe = None

    def _decode(self) -> None:
        if self._device_id is not None:
            # raises any earlier error that has corrupted the GPU's context
            torch.cuda.synchronize(self._device_id)
        if self._pipe is None:
            device = "cpu" if self._device_id is None else "gpu"
            # CUDA decodes, so that the hardware decoder gets the loader's batches alone: the size
            # of its first batch sets its share of all later ones.
            options = {} if self._device_id is None else {"hw_decoder_load": 0.0}
            self._pipe = Pipeline(1, 1, self._device_id, prefetch_queue_depth=1, exec_dynamic=True)
            encoded = _jpeg()
            with self._pipe:
                data = fn.external_source(lambda: [encoded], batch=True, dtype=types.UINT8, ndim=1)
                self._pipe.set_outputs(ops.decode(data, device, DecodeOptions(), options))
            self._pipe.build()
        (decoded,) = self._pipe.run()
        decoded.as_cpu()


def _jpeg() -> NDArray[np.uint8]:
    side, buffer = np.arange(_KNOWN_GOOD_SIDE, dtype=np.uint8), io.BytesIO()
    Image.fromarray(np.add.outer(side, side)).convert("RGB").save(buffer, "JPEG")
    return np.frombuffer(buffer.getvalue(), np.uint8)
