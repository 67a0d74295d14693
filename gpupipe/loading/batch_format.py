"""BatchFormat: from the dense tensors of an engine to the batch that the user gets.

engine            {"image": ..., "boxes.values": ..., "boxes.offsets": ..., "id": ...}
loader.shapes     images as one tensor, a list, or padded with a mask
loader.targets    a field of annotations as a Ragged, padded, or a list of tensors
loader.format     a dict, a tuple, or what DALI's iterators, transformers or detectors have
loader.collate    what a function of the user's makes of the samples
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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
    from torch import Tensor

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
        self._main = self._pipeline.main_outputs[0]
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
            images = batch[self._main + VALUES]
            for name in self._pipeline.outputs:
                self._split(name, batch)
        else:
            images = batch[self._main]
        if as_tuple and self._collate is None:
            every = tuple(batch[name] for name in self._pipeline.main_outputs)
            return every if self._pipeline.views else every[0], batch["label"]
        ids = batch.pop("id")
        if self._loader.ids:
            batch["id"] = to_device(ids, images.device)
        if self._ragged:
            self._join(batch)
        if self._collate is not None:
            count = len(batch[self._main])
            samples = [{name: value[n] for name, value in batch.items()} for n in range(count)]
            return collate(self._collate, samples)
        convert = self._conversions.get(self._loader.format)
        return batch if convert is None else convert(batch)

    def _split(self, name: str, batch: Batch) -> None:
        """Replace the elements of images that differ in size by a list, or by a padded tensor."""
        import torch

        from gpupipe.engines.batch import SHAPES, unflatten

        shapes = batch.pop(name + SHAPES)
        images = unflatten(batch.pop(name + VALUES), shapes)
        format = self._loader.format
        if format == "torchvision" or (format not in _PADDED and self._loader.shapes == "list"):
            batch[name] = images
            return
        # An image has the axes (C, H, W); any other array is padded along all of its axes.
        is_image = shapes.shape[1] == 3 and self._pipeline.is_image_file(name)
        multiple = self._loader.pad_to if is_image else 1
        largest = shapes.max(0).values
        sides = -(-largest[1:] // multiple) * multiple if is_image else largest[1:]
        padded = self._join_padded(images, (int(largest[0]), *sides.tolist()))
        batch[name] = padded
        if is_image:
            sizes, (high, wide) = shapes[:, 1:], padded.shape[-2:]
            rows = torch.arange(high)[:, None] < sizes[:, :1, None]
            mask = rows & (torch.arange(wide) < sizes[:, 1:, None])
            batch[f"{name}_mask"] = to_device(mask, padded.device)
            batch[f"{name}_sizes"] = to_device(sizes.contiguous(), padded.device)

    def _join_padded(self, images: "Sequence[Tensor]", shape: tuple[int, ...]) -> "Tensor":
        """Return images in one tensor (B, *shape), with zeros beyond the end of each."""
        first, shape = images[0], (len(images), *shape)
        is_on_cpu = first.device.type == "cpu"
        padded = self._memory.allocate(shape, first.dtype) if is_on_cpu else first.new_empty(shape)
        for image, slot in zip(images, padded, strict=True):
            for axis, side in enumerate(image.shape):
                slot.narrow(axis, side, slot.shape[axis] - side).zero_()
            slot[tuple(slice(side) for side in image.shape)] = image
        return padded

    def _join(self, batch: Batch) -> None:
        """Replace the two tensors of each field of annotations by its rows."""
        from gpupipe.annotations.ragged import Ragged

        for name, spec in self._ragged.items():
            rows = Ragged(batch.pop(name + VALUES), batch.pop(name + OFFSETS))
            if self._loader.format != "dict" or self._loader.targets == "list":
                batch[name] = list(rows)
            elif self._loader.targets == "padded":
                self._pad(name, spec, rows, batch)
            else:
                batch[name] = rows

    def _pad(self, name: str, spec: Spec, rows: "Ragged", batch: Batch) -> None:
        """Add the padded rows of a field to a batch; also their number, if they are its own."""
        batch[name], _ = rows.pad(padding_of(spec))
        if spec.annotation is not None and not spec.annotation.rows_with:
            batch[f"num_{name}"] = to_device(rows.counts, rows.values.device)

    def _targets(self, batch: Batch) -> list[dict[str, Any]]:
        """Split all but the images of a batch into one dict for each sample."""
        others = {name: value for name, value in batch.items() if name != self._main}
        count = len(batch[self._main])
        return [{name: value[n] for name, value in others.items()} for n in range(count)]

    def _to_torchvision(self, batch: Batch) -> "tuple[list[Tensor], list[dict[str, Any]]]":
        """Return the arguments of torchvision's detectors: images, and targets.

        Boxes are tv_tensors.BoundingBoxes. No label is 0, which is the background. Points have
        their visibility as third number, as Keypoint R-CNN reads them.
        """
        import torch
        from torchvision.tv_tensors import BoundingBoxes

        images, targets = list(batch[self._main]), self._targets(batch)
        for image, target in zip(images, targets, strict=True):
            for name, spec in self._ragged.items():
                if spec.kind == "boxes":
                    size = tuple(image.shape[-2:])
                    target[name] = BoundingBoxes(target[name], format="XYXY", canvas_size=size)
                elif spec.annotation and (points := spec.annotation.visibility_of):
                    visibility = target.pop(name)[..., None].to(target[points].dtype)
                    target[points] = torch.cat([target[points], visibility], -1)
            if LABELS in target:
                target[LABELS] = target[LABELS] + self._first_label
        return images, targets

    def _to_detr(self, batch: Batch) -> Batch:
        """Return a batch for DETR, whose boxes are [centre x, centre y, width, height], 0 to 1."""
        import torch

        images = batch[self._main]
        default = torch.tensor(images.shape[-2:]).expand(len(images), 2)
        sizes = batch.pop(f"{self._main}_sizes", default).tolist()
        none = torch.ones(len(images), *images.shape[-2:], dtype=torch.bool)
        mask = ~batch.pop(f"{self._main}_mask", none)
        targets = self._targets(batch)
        for (high, wide), target in zip(sizes, targets, strict=True):
            target["size"] = torch.tensor([high, wide], device=images.device)
            for name, spec in self._ragged.items():
                if spec.kind == "boxes":
                    first, last = target[name].split(2, -1)
                    boxes = torch.cat([(first + last) / 2, last - first], -1)
                    target[name] = boxes / boxes.new_tensor([wide, high, wide, high])
        return {self._main: images, "mask": mask.to(images.device), "targets": targets}

    def _to_dali(self, batch: Batch) -> list[Batch]:
        """Return a batch of DALI's iterators: a dict a pipeline, with labels of shape (B, 1)."""
        named = dict(batch)
        named["data"] = named.pop(self._main)
        if "label" in named and named["label"].ndim == 1:  # mixed labels are (B, classes)
            named["label"] = named["label"][:, None]
        return [named]

    def _to_hugging_face(self, batch: Batch) -> Batch:
        """Return the arguments of a model of transformers."""
        if any(spec.kind == "boxes" for spec in self._ragged.values()):
            made = self._to_detr(batch)
            labels = [
                {"class_labels" if name == LABELS else name: value for name, value in of.items()}
                for of in made["targets"]
            ]
            mask = (~made["mask"]).long()
            return {"pixel_values": made[self._main], "pixel_mask": mask, "labels": labels}
        batch["pixel_values"] = batch.pop(self._main)
        if (mask := batch.pop(f"{self._main}_mask", None)) is not None:
            batch["pixel_mask"] = mask.long()
        if "label" in batch:
            batch["labels"] = batch.pop("label")
        return batch


def padding_of(spec: Spec) -> float:
    """Return the number that fills missing rows: -1 for one whole number a row, such as a label."""
    is_label = spec.kind == "array" and spec.layout == "N" and spec.dtype.startswith("int")
    return -1.0 if is_label else 0.0
