"""BatchFormat: from the dense tensors of an engine to the batch that the user gets.

engine            {"image": ..., "boxes.values": ..., "boxes.offsets": ..., "id": ...}
loader.shapes     images as one tensor, a list, or padded with a mask
loader.targets    a field of annotations as a Ragged, padded, or a list of tensors
loader.format     a dict, a tuple, or what DALI's iterators, transformers or detectors have
loader.collate    what a function of the user's makes of the samples
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gpupipe.annotations.batch_annotations import OFFSETS, VALUES, list_ragged
from gpupipe.config import Config
from gpupipe.config.batch_formats import explain_wrong_collate, explain_wrong_format
from gpupipe.config.collate_call import CollateCall, collate
from gpupipe.dataset.labels import is_zero_free
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.runtime.memory import to_device

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from gpupipe.annotations.ragged import Ragged

Batch = dict[str, Any]
_PADDED = ("detr", "huggingface")
"""The formats whose images of unequal size are padded, also with `shapes: list`."""
LABELS = "labels"
"""The field of annotations that holds the class of each box."""


class BatchFormat:
    """Turns the batches of an engine into those of a loader.

    Args:
        config: The config, with the pipeline of the batches and the settings of `loader:`.
        classes: The names of the classes, by label.

    Raises:
        ConfigError: The pipeline cannot be delivered in this format, or there is no such collate
            function.
    """

    def __init__(self, config: Config, classes: Sequence[str]) -> None:
        self._pipeline, self._loader = config.pipeline, config.loader
        if wrong := explain_wrong_format(self._pipeline, self._loader):
            raise ConfigError.at("loader.format", wrong)
        steps = [entry.name for entry in config.batch.entries]  # a server's, perhaps
        if wrong := explain_wrong_collate(steps, self._loader):
            raise ConfigError.at("loader.collate", wrong)
        call: CollateCall | None = self._loader.collate
        self._collate = None if call is None else call.find()
        self._ragged = list_ragged(self._pipeline) if self._pipeline.annotations else {}
        self._boxes = [name for name, spec in self._ragged.items() if spec.kind == "boxes"]
        self._main = self._pipeline.main_outputs[0]
        shapes, format = self._loader.shapes, self._loader.format
        self._is_detection = format == "torchvision" or (format in _PADDED and bool(self._boxes))
        self._has_own_mask = format in _PADDED and self._collate is None
        """Whether the conversion to the format makes the mask of the main images."""
        self._is_padded = shapes != "equal" and (
            format in _PADDED or (shapes == "padded" and format != "torchvision")
        )
        self._memory = BatchMemory(spare=2 * len(self._pipeline.outputs))
        self._first_label = 0 if is_zero_free(classes) else 1
        """What torchvision's format adds to labels: 0 stands for the background there."""
        self._conversions: dict[str, Callable[[Batch], Any]] = {
            "dali": self._to_dali,
            "huggingface": self._to_hugging_face,
            "torchvision": self._to_torchvision,
            "detr": self._to_detr,
        }

    def __call__(self, batch: Batch, as_tuple: bool) -> Any:
        """Return a batch in the format of the settings.

        Args:
            batch: Dense tensors by name. The dict is changed.
            as_tuple: Whether to return (first field, label). A collate function has no tuples.

        Raises:
            StepError: The collate function raises.
        """
        if self._loader.shapes != "equal":
            for name in self._pipeline.outputs:
                self._split(name, batch)
        if as_tuple and self._collate is None:
            every = tuple(batch[name] for name in self._pipeline.main_outputs)
            return every if self._pipeline.views else every[0], batch["label"]
        ids = batch.pop("id")
        if self._loader.ids:
            batch["id"] = to_device(ids, batch[self._main][0].device)
        if self._ragged:
            self._join(batch)
        if self._collate is not None:
            return collate(self._collate, list_samples(batch))
        convert = self._conversions.get(self._loader.format)
        return batch if convert is None else convert(batch)

    @property
    def pad_to(self) -> int | None:
        """The multiple to which both sides of images are padded; None if images are not padded."""
        return self._loader.pad_to if self._is_padded else None

    def _split(self, name: str, batch: Batch) -> None:
        """Replace the elements of images that differ in size by a list, or by a padded tensor."""
        from gpupipe.engines.batch import SHAPES, unflatten

        shapes = batch.pop(name + SHAPES)
        # An image has the axes (C, H, W); any other array is padded along all of its axes.
        is_image = shapes.shape[1] == 3 and self._pipeline.is_image_file(name)
        if name not in batch:  # the engine did not pad them
            images = unflatten(batch.pop(name + VALUES), shapes)
            if not self._is_padded:
                batch[name] = images
                return
            multiple = self._loader.pad_to if is_image else 1
            largest = shapes.max(0).values
            sides = -(-largest[1:] // multiple) * multiple
            padded = self._join_padded(images, (int(largest[0]), *sides.tolist()))
        else:
            padded = batch.pop(name)
        batch[name] = padded
        if is_image:
            sizes = shapes[:, 1:].contiguous()
            if name != self._main or not self._has_own_mask:
                batch[f"{name}_mask"] = self._find_mask(padded, sizes)
                sizes = to_device(sizes, padded.device)
            batch[f"{name}_sizes"] = sizes

    def _find_mask(
        self,
        images: "Tensor",
        sizes: "Tensor",
        dtype: "dtype | None" = None,
        is_padding: bool = False,
    ) -> "Tensor":
        """Return which pixels of padded images belong to them, (B, H, W).

        Args:
            images: The images, (B, C, H, W).
            sizes: The [height, width] of each without the padding, int64 (B, 2), on the CPU.
            dtype: The dtype of the mask; bool by default.
            is_padding: Return which pixels do not belong to them.
        """
        import torch

        count, _, high, wide = images.shape
        shape = count, high, wide
        mask, array = self._memory.allocate_with_array(shape, dtype or torch.bool)
        ends = sizes.numpy()  # NumPy takes a sixth of torch's time, also of the interpreter's lock
        if is_padding:
            rows, columns = np.arange(high) >= ends[:, :1], np.arange(wide) >= ends[:, 1:]
            np.logical_or(rows[:, :, None], columns[:, None], out=array)
        else:
            rows, columns = np.arange(high) < ends[:, :1], np.arange(wide) < ends[:, 1:]
            np.logical_and(rows[:, :, None], columns[:, None], out=array)
        return to_device(mask, images.device)

    def _join_padded(self, images: "Sequence[Tensor]", shape: tuple[int, ...]) -> "Tensor":
        """Return images in one tensor (B, *shape), with zeros beyond the end of each."""
        first, shape = images[0], (len(images), *shape)
        is_on_cpu = first.device.type == "cpu"
        padded = self._memory.allocate(shape, first.dtype) if is_on_cpu else first.new_empty(shape)
        for image, slot in zip(images, padded, strict=True):
            for axis, side in enumerate(image.shape):
                if side < slot.shape[axis]:
                    slot.narrow(axis, side, slot.shape[axis] - side).zero_()
            slot[tuple(slice(side) for side in image.shape)] = image
        return padded

    def _join(self, batch: Batch) -> None:
        """Replace the two tensors of each field of annotations by its rows."""
        from gpupipe.annotations.ragged import Ragged

        for name, spec in self._ragged.items():
            rows = Ragged.unchecked(batch.pop(name + VALUES), batch.pop(name + OFFSETS))
            is_dict, targets = self._loader.format == "dict", self._loader.targets
            if is_dict and targets == "padded":
                self._pad(name, spec, rows, batch)
            elif (is_dict and targets != "list") or (self._is_detection and self._collate is None):
                batch[name] = rows
            else:
                batch[name] = list(rows)

    def _pad(self, name: str, spec: Spec, rows: "Ragged", batch: Batch) -> None:
        """Add the padded rows of a field to a batch; also their number, if they are its own."""
        batch[name], _ = rows.pad(padding_of(spec))
        if spec.annotation is not None and not spec.annotation.rows_with:
            batch[f"num_{name}"] = to_device(rows.counts, rows.values.device)

    def _to_torchvision(self, batch: Batch) -> "tuple[list[Tensor], list[dict[str, Any]]]":
        """Return the arguments of torchvision's detectors: images, and targets.

        Boxes are tv_tensors.BoundingBoxes. No label is 0, which is the background. Points have
        their visibility as third number, as Keypoint R-CNN reads them.
        """
        import torch
        from torchvision.tv_tensors import BoundingBoxes

        images = list(batch.pop(self._main))
        for name, spec in self._ragged.items():
            if spec.annotation and (points := spec.annotation.visibility_of):
                values, visibility = batch[points].values, batch.pop(name).values[..., None]
                batch[points].values = torch.cat([values, visibility.to(values.dtype)], -1)
        if isinstance(labels := batch.get(LABELS), torch.Tensor):
            batch[LABELS] = labels + self._first_label
        elif labels is not None:
            labels.values = labels.values + self._first_label
        targets = list_samples(batch)
        attributes = find_box_attributes()
        sizes = [tuple(image.shape[1:]) for image in images]
        for name in self._boxes:
            for size, target in zip(sizes, targets, strict=True):
                target[name] = boxes = target[name].as_subclass(BoundingBoxes)
                boxes.__dict__ = attributes | {"canvas_size": size}
        return images, targets

    def _to_detr(self, batch: Batch) -> Batch:
        """Return a batch for DETR, whose mask is True where an image is padded."""
        images, sizes = self._relate_boxes(batch)
        mask = self._find_mask(images, sizes, is_padding=True)
        return {self._main: images, "mask": mask, "targets": list_samples(batch)}

    def _relate_boxes(self, batch: Batch) -> "tuple[Tensor, Tensor]":
        """Make boxes [centre x, centre y, width, height], 0 to 1; add "size".

        Returns:
            The images, which are removed from the batch; and the [height, width] of each without
            its padding, int64 (B, 2), on the CPU.
        """
        import torch

        images = batch.pop(self._main)
        default = torch.tensor(images.shape[-2:]).repeat(len(images), 1)
        sizes = batch.pop(f"{self._main}_sizes", default)
        for name in self._boxes:
            rows = batch[name]
            first, last = rows.values.split(2, -1)
            boxes = torch.cat([(first + last) / 2, last - first], -1)
            scale = sizes.flip(-1).repeat(1, 2).repeat_interleave(rows.counts, 0)
            rows.values = boxes / to_device(scale.to(boxes.dtype), boxes.device)
        batch["size"] = to_device(sizes, images.device)
        return images, sizes

    def _to_dali(self, batch: Batch) -> list[Batch]:
        """Return a batch of DALI's iterators: a dict a pipeline, with labels of shape (B, 1)."""
        named = dict(batch)
        named["data"] = named.pop(self._main)
        if "label" in named and named["label"].ndim == 1:  # mixed labels are (B, classes)
            named["label"] = named["label"][:, None]
        return [named]

    def _to_hugging_face(self, batch: Batch) -> Batch:
        """Return the arguments of a model of transformers."""
        import torch

        if self._boxes:
            images, sizes = self._relate_boxes(batch)
            mask = self._find_mask(images, sizes, torch.int64)
            named = {"class_labels" if n == LABELS else n: value for n, value in batch.items()}
            return {"pixel_values": images, "pixel_mask": mask, "labels": list_samples(named)}
        batch["pixel_values"] = images = batch.pop(self._main)
        if (name := f"{self._main}_sizes") in batch:
            batch["pixel_mask"] = self._find_mask(images, batch[name], torch.int64)
            batch[name] = to_device(batch[name], images.device)
        if "label" in batch:
            batch["labels"] = batch.pop("label")
        return batch


@cache
def find_box_attributes() -> dict[str, Any]:
    """Return the attributes of BoundingBoxes XYXY.

    BoundingBoxes() takes three times as long as as_subclass() and a copy of these.
    """
    import torch
    from torchvision.tv_tensors import BoundingBoxes

    boxes = BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=(0, 0))
    return dict(vars(boxes))


def list_samples(batch: Batch) -> list[dict[str, Any]]:
    """Split a batch into one dict for each sample. Its tensors are views of the batch's."""
    samples: list[dict[str, Any]] = []
    for name, value in batch.items():
        values = value if isinstance(value, list) else value.unbind()
        samples = samples or [{} for _ in values]
        for sample, one in zip(samples, values, strict=True):
            sample[name] = one
    return samples


def padding_of(spec: Spec) -> float:
    """Return the number that fills missing rows: -1 for one whole number a row, such as a label."""
    is_label = spec.kind == "array" and spec.layout == "N" and spec.dtype.startswith("int")
    return -1.0 if is_label else 0.0
