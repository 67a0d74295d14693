"""Reads the parameters of a step from the attributes of a torchvision object."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from gpupipe.config import to_plain_types
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.schema.validation_errors import own_fields_first


class NoCounterpartError(Exception):
    """No step does what a transform does; the message says why, or what to write instead."""


def read_dtype(name: str, transform: Any) -> dict[str, Any]:
    """Return the parameters of the step to_dtype; "dtype" is None if images keep their dtype.

    Raises NoCounterpartError if the transform also changes the dtype of masks.
    """
    if name == "ToTensor":
        return {"dtype": "float32", "scale": True}
    dtype = transform.dtype
    if isinstance(dtype, dict):
        kinds = _split_kinds(dtype)
        if kinds.get("mask") is not None:
            mask = to_plain_types(kinds["mask"])
            raise NoCounterpartError(
                f"its dtype for Mask needs a step of its own: write 'to_dtype: {{dtype: {mask}, "
                "on: mask}' in the YAML, and leave Mask out here"
            )
        dtype = kinds.get("image")
    scale = name == "ConvertImageDtype" or transform.scale
    return {"dtype": to_plain_types(dtype), "scale": scale}


def _split_kinds(by_type: dict[Any, Any]) -> dict[str, Any]:
    """Return the entries for images and masks, as {"image": ..., "mask": ...}.

    Args:
        by_type: A fill or dtype of torchvision, by the class of the input, such as tv_tensors.Mask.
    """
    import torch
    from PIL import Image
    from torchvision import tv_tensors

    image = (tv_tensors.Image, Image.Image, torch.Tensor, "others")
    if isinstance(by_type, defaultdict) and by_type.default_factory and not by_type.keys() & image:
        by_type = {"others": by_type.default_factory(), **by_type}
    kinds = {"image": image, "mask": (tv_tensors.Mask,)}
    return {
        kind: next(by_type[key] for key in keys if key in by_type)
        for kind, keys in kinds.items()
        if any(key in by_type for key in keys)
    }


_ATTRIBUTES = {"sampler_options": "options"}
"""Attributes whose names are not those of the parameters."""
_IOU_OPTIONS = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
"""What v2.RandomIoUCrop stores for sampler_options=None."""


def read_parameters(step: str, transform: Any) -> dict[str, Any]:
    """Return the parameters of `step` from the attributes with the same names."""
    return {
        name: _CONVERSIONS.get(name, to_plain_types)(_plain(_get(transform, attribute)))
        for name in own_fields_first(STEPS.find(step))
        if hasattr(transform, attribute := _ATTRIBUTES.get(name, name))
    }


def _get(transform: Any, name: str) -> Any:
    """Return an attribute of a torchvision object.

    The padding of v2.RandomCrop, [left, right, top, bottom], becomes [left, top, right, bottom].
    Raises NoCounterpartError for a matrix or mean of LinearTransformation that is not float32.
    """
    import torch
    from torchvision.transforms import v2

    value = getattr(transform, name)
    if name in ("transformation_matrix", "mean_vector") and value.dtype != torch.float32:
        raise NoCounterpartError(
            f"{name} is {str(value.dtype).removeprefix('torch.')}, and a list in YAML is float32: "
            f"make it float32, or save it with numpy.save and write '{name}: FILE.npy'"
        )
    if name == "padding" and value and isinstance(transform, v2.RandomCrop):
        left, right, top, bottom = value
        return [left, top, right, bottom]
    return value


def _plain(value: Any) -> Any:
    """Return the value of an enum, the numbers of a tensor, or the value itself."""
    if isinstance(value, Enum):
        return value.value
    return (
        value.tolist() if type(value).__module__ == "torch" and hasattr(value, "tolist") else value
    )


def _read_interpolation(value: Any) -> Any:
    from PIL import Image

    return Image.Resampling(value).name.lower() if isinstance(value, int) else value


def _read_fill(value: Any) -> Any:
    if not isinstance(value, dict):
        return to_plain_types(value)
    kinds = _split_kinds(value)
    return to_plain_types({"image": None, **kinds} if "mask" in kinds else kinds.get("image"))


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "fill": _read_fill,
    "interpolation": _read_interpolation,
    "sampler_options": lambda v: None if v == _IOU_OPTIONS else to_plain_types(v),
    # v2.Resize(224) stores [224]; the step takes 224.
    "size": lambda v: to_plain_types(v[0] if isinstance(v, Sequence) and len(v) == 1 else v),
    # v2.RandomErasing has None for "random".
    "value": lambda v: "random" if v is None else to_plain_types(v),
}
"""Conversions of parameters that torchvision stores in another form, by name."""
