"""torchvision's recipe of SSD300 as it is written by hand: with a DataLoader, and with DALI.

Nothing here uses gpupipe.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.datasets import CocoDetection, wrap_dataset_for_transforms_v2
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

SIZE = (300, 300)
_FILL = (123.0, 117.0, 104.0)


class _Tensors(CocoDetection):
    """Decodes to tensors, with torchvision's own decoder."""

    def _load_image(self, id: int) -> Any:
        name = self.coco.loadImgs(id)[0]["file_name"]
        return tv_tensors.Image(decode_image(f"{self.root}/{name}", ImageReadMode.RGB))


def torchvision_batches(
    root: Path, annotations: Path, decoder: str, workers: int, batch_size: int
) -> Any:
    """references/detection: DetectionPresetTrain(data_augmentation="ssd", use_v2=True).

    It ends with the resize of the detector itself.
    """
    kind = CocoDetection if decoder == "pil" else _Tensors
    found = kind(str(root), str(annotations))
    data = wrap_dataset_for_transforms_v2(found, target_keys=["boxes", "labels", "image_id"])
    fill: dict[Any, Any] = defaultdict(lambda: _FILL, {tv_tensors.Mask: 0})
    data.transforms = data.transform = None
    transform = v2.Compose(
        [
            v2.RandomPhotometricDistort(),
            v2.RandomZoomOut(fill=fill),
            v2.RandomIoUCrop(),
            v2.RandomHorizontalFlip(0.5),
            *([v2.PILToTensor()] if decoder == "pil" else []),
            v2.Resize(SIZE, antialias=False),
            v2.ToDtype(torch.float, scale=True),
            v2.ConvertBoundingBoxFormat(tv_tensors.BoundingBoxFormat.XYXY),
            v2.SanitizeBoundingBoxes(),
            v2.ToPureTensor(),
        ]
    )
    return DataLoader(
        _Transformed(data, transform),
        batch_size,
        shuffle=True,
        num_workers=workers,
        collate_fn=_collate,
        drop_last=True,
        persistent_workers=workers > 0,
    )


class _Transformed(torch.utils.data.Dataset[Any]):
    def __init__(self, data: Any, transform: Any) -> None:
        self._data, self._transform = data, transform

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, n: int) -> Any:
        return self._transform(*self._data[n])


def _collate(samples: list[Any]) -> Any:
    return tuple(zip(*samples, strict=True))


def dali_batches(root: Path, annotations: Path, batch_size: int, threads: int) -> Any:
    """DALI's example of SSD (docs/examples/use_cases/pytorch/single_stage_detector), with the
    probabilities and ranges of torchvision's recipe. It crops with DALI's own random_bbox_crop.
    """
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    return DALIGenericIterator(
        _dali_pipeline(root, annotations, batch_size, threads),
        ["image", "boxes", "labels"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.DROP,
        auto_reset=True,
    )


def _dali_pipeline(root: Path, annotations: Path, batch_size: int, threads: int) -> Any:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def
    def ssd() -> Any:
        encoded, boxes, labels = fn.readers.coco(
            file_root=str(root),
            annotations_file=str(annotations),
            ltrb=True,
            ratio=True,
            random_shuffle=True,
            skip_empty=True,
            name="reader",
        )
        images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        is_pasted = fn.random.coin_flip(probability=0.5)
        ratio = 1.0 + is_pasted * fn.random.uniform(range=[0.0, 3.0])
        x, y = fn.random.uniform(range=[0.0, 1.0]), fn.random.uniform(range=[0.0, 1.0])
        images = fn.paste(images, ratio=ratio, paste_x=x, paste_y=y, fill_value=_FILL)
        boxes = fn.bbox_paste(boxes, ratio=ratio, paste_x=x, paste_y=y, ltrb=True)
        anchor, shape, boxes, labels = fn.random_bbox_crop(
            boxes,
            labels,
            device="cpu",
            aspect_ratio=[0.5, 2.0],
            thresholds=[0.0, 0.1, 0.3, 0.5, 0.7, 0.9],
            scaling=[0.3, 1.0],
            bbox_layout="xyXY",
            allow_no_crop=True,
            num_attempts=40,
        )
        images = fn.slice(images, anchor, shape)
        images = fn.resize(
            images, size=list(SIZE), interp_type=types.INTERP_LINEAR, antialias=False
        )
        images = fn.color_twist(
            images,
            brightness=_maybe(0.875, 1.125),
            contrast=_maybe(0.5, 1.5),
            saturation=_maybe(0.5, 1.5),
            hue=_maybe(-18.0, 18.0, 0.0),
        )
        mirrors = fn.random.coin_flip(probability=0.5)
        images = fn.crop_mirror_normalize(
            images,
            mirror=mirrors,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[0.0] * 3,
            std=[255.0] * 3,
        )
        boxes = fn.bb_flip(boxes, ltrb=True, horizontal=mirrors)
        return images, fn.pad(boxes, fill_value=-1), fn.pad(labels, fill_value=-1)

    def _maybe(low: float, high: float, neutral: float = 1.0) -> Any:
        """A factor that is drawn for half of the samples."""
        drawn = fn.random.uniform(range=[low, high])
        return neutral + fn.random.coin_flip(probability=0.5) * (drawn - neutral)

    return ssd(batch_size=batch_size, num_threads=threads, device_id=None, prefetch_queue_depth=2)
