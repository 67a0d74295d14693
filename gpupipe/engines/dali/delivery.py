"""How DALI delivers a field: dtype and layout, and the tensor that the user gets."""

from __future__ import annotations

from typing import Literal

import torch

from gpupipe.engines.base import Job
from gpupipe.engines.dali.operators.dtypes import as_integers


def delivered_dtype(job: Job, name: str) -> str:
    """Return the dtype in which DALI delivers a field.

    DALI has no bfloat16: it delivers float32, and `to_field` converts that in torch.
    """
    dtype = job.pipeline.output_spec_of(name).dtype
    wanted = job.loader.dtype or dtype if name in job.pipeline.main_outputs else dtype
    return "float32" if wanted == "bfloat16" else wanted


def delivered_layout(job: Job, name: str) -> Literal["HWC", "CHW"]:
    """Return the layout in which DALI delivers a field that is an image file.

    The layout is HWC for `memory_format: channels_last`, else CHW.
    """
    return (
        "HWC"
        if job.loader.memory_format == "channels_last" and job.pipeline.is_image_file(name)
        else "CHW"
    )


def to_field(job: Job, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Convert DALI's output to the field's axis order (B, C, H, W) and its final dtype."""
    if delivered_layout(job, name) == "HWC":
        tensor = tensor.permute(0, 3, 1, 2)
    dtype = delivered_dtype(job, name)
    tensor = tensor if as_integers(dtype) == dtype else tensor.view(getattr(torch, dtype))
    return (
        tensor.to(torch.bfloat16)
        if job.loader.dtype == "bfloat16" and name in job.pipeline.main_outputs
        else tensor
    )
