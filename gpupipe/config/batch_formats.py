"""What the formats of a batch need: checks of `loader.format`, `targets` and `shapes`."""

from collections.abc import Sequence

from gpupipe.config.loader_config import LoaderConfig
from gpupipe.dataset.spec import FLOATS
from gpupipe.pipeline.pipeline import Pipeline

_DETECTION = ("torchvision", "detr")
_ONE_IMAGE = ("dali", "huggingface")


def explain_wrong_collate(batch_steps: Sequence[str], loader: LoaderConfig) -> str:
    """Return why `loader.collate` cannot stand beside the steps of a batch; "" if it can."""
    if loader.collate is None or not batch_steps:
        return ""
    return (
        f"{batch_steps[0]} works on whole batches of tensors, before the function: leave collate "
        "out, or the steps under batch"
    )


def explain_wrong_format(pipeline: Pipeline, loader: LoaderConfig) -> str:
    """Return why a pipeline cannot be delivered in `loader.format`; "" if it can."""
    if loader.shapes != "equal" and loader.memory_format == "channels_last":
        return f"shapes {loader.shapes} needs memory_format: contiguous"
    if loader.format not in (*_DETECTION, *_ONE_IMAGE):
        return ""
    if pipeline.views:
        return f"format {loader.format} delivers one image of each sample, and there are views"
    return "" if loader.format in _ONE_IMAGE else _explain_wrong_detection(pipeline, loader)


def _explain_wrong_detection(pipeline: Pipeline, loader: LoaderConfig) -> str:
    kinds = {spec.kind for spec in pipeline.annotations_of(pipeline.main).values()}
    if "boxes" not in kinds:
        return (
            f"format {loader.format} delivers boxes, and the field '{pipeline.main}' has none: "
            "read them with a source of annotations, or leave format out"
        )
    spec = pipeline.output_spec
    dtype = loader.dtype or spec.dtype
    if loader.format == "torchvision" and (
        dtype not in FLOATS or spec.dtype not in FLOATS or spec.pixels.values != "usual"
    ):
        return (
            "torchvision's detectors take floats from 0 to 1, and normalize them themselves; the "
            f"pipeline ends with {spec.pixels.values} values of {dtype}: end it with "
            "'to_dtype: {dtype: float32, scale: true}'"
        )
    return ""
