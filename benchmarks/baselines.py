"""What gpupipe is measured against: what an expert writes by hand for three workloads, with DALI
and with torchvision.

Nothing here uses gpupipe. The DALI graphs take `device`, "cpu" or "gpu".
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEVELS = {"mean": [255 * m for m in MEAN], "std": [255 * s for s in STD]}
_CENTRE = [125.0, 125.0]


@dataclass(frozen=True)
class Workload:
    """pipeline: gpupipe's name for it. photos: "lfw" (250x250) or "imagenet" (500x375)."""

    pipeline: str
    photos: str
    batch_size: int
    shuffle: bool


WORKLOADS = {
    "lfw-affine": Workload("affine", "lfw", 256, True),
    "imagenet_train": Workload("imagenet_train", "imagenet", 128, True),
    "imagenet_eval": Workload("imagenet_eval", "imagenet", 128, False),
}


_SETS = {"lfw": 5000, "imagenet": 1000}


def images_root(workload: Workload, data: Path, most: int, copies: int = 1) -> Path:
    """The workload's JPEGs, at most `most` files, each under `copies` names, made in the folder
    `data` where they are not there yet.
    """
    import photos

    make = photos.lfw_like if workload.photos == "lfw" else photos.imagenet_like
    root = make(data, min(most, _SETS[workload.photos]))
    return root if copies == 1 else photos.copied(root, copies)


# --- DALI, written by hand


def affine(encoded: Any, device: str, **decoder: Any) -> Any:
    """Images are 250x250, which lets the matrix be made without looking at them."""
    from nvidia.dali import fn, types

    images = fn.decoders.image(encoded, device=_decoding(device), **decoder)
    matrix = _random_matrix()
    if device == "gpu":
        images = fn.warp_affine(images, matrix=matrix, inverse_map=False, fill_value=0)
    else:
        square = fn.cat(matrix, types.Constant(np.array([[0, 0, 1]], np.float32)), axis=0)
        images = fn.experimental.warp_perspective(
            images, matrix=square, inverse_map=False, fill_value=0
        )
    return fn.crop_mirror_normalize(
        images, dtype=types.FLOAT, output_layout="CHW", mean=[0.0], std=[255.0]
    )


def _random_matrix() -> Any:
    """Up to 5 degrees, a scale of 0.5 to 2 and a shift of up to a tenth, from input to output
    coordinates.
    """
    from nvidia.dali import fn

    scale = fn.random.uniform(range=[0.5, 2.0])
    matrix = fn.transforms.rotation(angle=fn.random.uniform(range=[-5.0, 5.0]), center=_CENTRE)
    matrix = fn.transforms.scale(matrix, scale=fn.stack(scale, scale), center=_CENTRE)
    return fn.transforms.translation(
        matrix, offset=fn.random.uniform(range=[-25.0, 25.0], shape=[2])
    )


CROP = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3]}


def train_region(encoded: Any, device: str, **decoder: Any) -> Any:
    """Decodes only what the random crop needs."""
    from nvidia.dali import fn, types

    images = fn.decoders.image_random_crop(encoded, device=_decoding(device), **CROP, **decoder)
    images = fn.resize(images, size=[224, 224], interp_type=types.INTERP_LINEAR, antialias=True)
    return _mirrored_and_normalised(images)


def train_whole(encoded: Any, device: str, **decoder: Any) -> Any:
    """Decodes whole images, then crops: for decoders that cannot take a region."""
    from nvidia.dali import fn, types

    images = fn.decoders.image(encoded, device=_decoding(device), **decoder)
    images = fn.random_resized_crop(
        images, size=[224, 224], interp_type=types.INTERP_LINEAR, antialias=True, **CROP
    )
    return _mirrored_and_normalised(images)


def _mirrored_and_normalised(images: Any) -> Any:
    from nvidia.dali import fn, types

    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        mirror=fn.random.coin_flip(probability=0.5),
        **LEVELS,
    )


def evaluate(encoded: Any, device: str, **decoder: Any) -> Any:
    from nvidia.dali import fn, types

    images = fn.decoders.image(encoded, device=_decoding(device), **decoder)
    images = fn.resize(images, resize_shorter=256, interp_type=types.INTERP_LINEAR, antialias=True)
    return fn.crop_mirror_normalize(
        images, dtype=types.FLOAT, output_layout="CHW", crop=(224, 224), **LEVELS
    )


def decode_only(encoded: Any, device: str, **decoder: Any) -> Any:
    """The ceiling: whole images, left where they were decoded."""
    from nvidia.dali import fn

    return fn.decoders.image(encoded, device=_decoding(device), **decoder)


def decode_region(encoded: Any, device: str, **decoder: Any) -> Any:
    """The ceiling of decoders that take a region: what a random crop needs, left where it was
    decoded.
    """
    from nvidia.dali import fn

    return fn.decoders.image_random_crop(encoded, device=_decoding(device), **CROP, **decoder)


def _decoding(device: str) -> str:
    return "mixed" if device == "gpu" else "cpu"


Graph = Callable[..., Any]
ON_CPU: dict[str, Graph] = {
    "affine": affine,
    "imagenet_train": train_region,
    "imagenet_eval": evaluate,
}


def dali_pipeline(
    graph: Graph,
    root: Path,
    batch_size: int,
    threads: int,
    shuffle: bool,
    device_id: int | None = None,
    **decoder: Any,
) -> Any:
    """The DALI pipeline of a graph over a folder of class folders: images and labels, both on the
    device.
    """
    from nvidia.dali import Pipeline, fn

    device = "cpu" if device_id is None else "gpu"
    pipe = Pipeline(
        batch_size=batch_size, num_threads=threads, device_id=device_id, prefetch_queue_depth=2
    )
    with pipe:
        encoded, labels = fn.readers.file(
            file_root=str(root), random_shuffle=shuffle, name="reader"
        )
        pipe.set_outputs(
            graph(encoded, device, **decoder), labels if device == "cpu" else labels.gpu()
        )
    return pipe


def dali_batches(pipe: Any) -> Any:
    """Epochs of [{"image", "label"}] without end.

    All batches are full: what a last one borrows from the next epoch counts as images.
    """
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    return DALIGenericIterator(
        [pipe],
        ["image", "label"],
        reader_name="reader",
        auto_reset=False,
        last_batch_policy=LastBatchPolicy.FILL,
    )


def dali_size(batch: Any) -> int:
    size: int = batch[0]["image"].shape[0]
    return size


# --- torchvision


def torchvision_batches(
    workload: Workload, root: Path, decoder: str, workers: int, **loader: Any
) -> Any:
    """A DataLoader over an ImageFolder, for a workload; see `image_folder_batches`."""
    transform = _transform(workload.pipeline, decoder)
    options = {"batch_size": workload.batch_size, "shuffle": workload.shuffle}
    return image_folder_batches(root, transform, decoder, workers, **options, **loader)


def image_folder_batches(
    root: Path, transform: Callable[[Any], Any], decoder: str, workers: int, **loader: Any
) -> Any:
    """A DataLoader over an ImageFolder.

    decoder: "tensor" (torchvision.io) or "pil"; `transform` gets what it decodes to.
    """
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    read = _read_tensor if decoder == "tensor" else _read_pil
    kept = {"worker_init_fn": _one_thread, "persistent_workers": True} if workers else {}
    return DataLoader(
        ImageFolder(str(root), transform, loader=read), num_workers=workers, **kept, **loader
    )


def torchvision_size(batch: Any) -> int:
    size: int = batch[1].shape[0]  # of the labels: images may be a list of crops
    return size


def _read_tensor(path: str) -> Any:
    from torchvision.io import ImageReadMode, decode_image, read_file

    return decode_image(read_file(path), mode=ImageReadMode.RGB)


def _read_pil(path: str) -> Any:
    from PIL import Image

    with open(path, "rb") as f:
        return Image.open(f).convert("RGB")


def _one_thread(_worker: int) -> None:
    import torch

    torch.set_num_threads(1)


def _transform(pipeline: str, decoder: str) -> Any:
    import torch
    from torchvision.transforms import v2

    steps = {
        "affine": lambda: [
            v2.RandomAffine(
                5,
                translate=(0.1, 0.1),
                scale=(0.5, 2.0),
                interpolation=v2.InterpolationMode.BILINEAR,
            )
        ],
        "imagenet_train": lambda: [
            v2.RandomResizedCrop(224, antialias=True),
            v2.RandomHorizontalFlip(),
        ],
        "imagenet_eval": lambda: [v2.Resize(256, antialias=True), v2.CenterCrop(224)],
    }[pipeline]()
    made = [
        *steps,
        *([v2.ToImage()] if decoder == "pil" else []),
        v2.ToDtype(torch.float32, scale=True),
    ]
    return v2.Compose(made if pipeline == "affine" else [*made, v2.Normalize(MEAN, STD)])
