"""The training recipes of benchmarks/recipes.py as they are written by hand: with torchvision, and
RandAugment with DALI's own auto_aug. Nothing here uses gpupipe.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import baselines
import torch
from torch.utils.data import default_collate
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

_BICUBIC, _BILINEAR = v2.InterpolationMode.BICUBIC, v2.InterpolationMode.BILINEAR


def _to_tensor(decoder: str) -> list[Any]:
    """Float tensors of 0 to 1 from what the decoder makes, as in torchvision's presets."""
    return [*([v2.PILToTensor()] if decoder == "pil" else []), v2.ToDtype(torch.float32, True)]


def resnet50_v2(decoder: str) -> Callable[[Any], Any]:
    """ClassificationPresetTrain of torchvision's references/classification, for weights V2."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(176, interpolation=_BILINEAR, antialias=True),
            v2.RandomHorizontalFlip(0.5),
            v2.TrivialAugmentWide(interpolation=_BILINEAR),
            *_to_tensor(decoder),
            v2.Normalize(baselines.MEAN, baselines.STD),
            v2.RandomErasing(p=0.1),
        ]
    )


def timm_a2(decoder: str) -> Callable[[Any], Any]:
    """timm's recipe A2, with torchvision's functions in place of timm's."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(224, interpolation=_BICUBIC, antialias=True),
            v2.RandomHorizontalFlip(0.5),
            TimmRandAugment(),
            *_to_tensor(decoder),
            v2.Normalize(baselines.MEAN, baselines.STD),
        ]
    )


def simclr(decoder: str) -> Callable[[Any], Any]:
    """Two views of each image, with PyTorch's usual transforms for SimCLR."""
    view = v2.Compose(
        [
            v2.RandomResizedCrop(224, scale=(0.08, 1.0), interpolation=_BICUBIC, antialias=True),
            v2.RandomHorizontalFlip(0.5),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], p=0.5),
            *_to_tensor(decoder),
        ]
    )
    return lambda image: torch.stack([view(image), view(image)])


def dino_v2(decoder: str) -> Callable[[Any], Any]:
    """The ten crops of each image in facebookresearch/dinov2 (data/augmentations.py).

    Blur is as in the shipped pipeline: of no first crop, 90 % of second, and half of local ones.
    """
    first = _dino_crop(decoder, 224, (0.32, 1.0))
    second = _dino_crop(decoder, 224, (0.32, 1.0), blur=0.9, solarize=0.2)
    local = _dino_crop(decoder, 96, (0.05, 0.32), blur=0.5)
    return lambda image: [first(image), second(image), *(local(image) for _ in range(8))]


def _dino_crop(
    decoder: str, size: int, scale: tuple[float, float], blur: float = 0.0, solarize: float = 0.0
) -> Callable[[Any], Any]:
    blurs = [v2.RandomApply([v2.GaussianBlur(9, (0.1, 2.0))], p=blur)] if blur else []
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=scale, interpolation=_BICUBIC, antialias=True),
            v2.RandomHorizontalFlip(0.5),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            v2.RandomGrayscale(0.2),
            *blurs,
            *([v2.RandomSolarize(threshold=128, p=solarize)] if solarize else []),
            *_to_tensor(decoder),
            v2.Normalize(baselines.MEAN, baselines.STD),
        ]
    )


class TimmRandAugment:
    """timm's rand-m7-mstd0.5-inc1 on PIL images or uint8 tensors.

    As in timm, two operations are drawn with replacement; each is applied with probability 0.5,
    and its magnitude has a standard deviation of 0.5.
    """

    fill = (124, 116, 104)

    def __init__(self) -> None:
        enhance = (F.adjust_saturation, F.adjust_contrast, F.adjust_brightness, F.adjust_sharpness)
        self.ops: list[Callable[[Any, float], Any]] = [
            lambda image, m: F.autocontrast(image),
            lambda image, m: F.equalize(image),
            lambda image, m: F.invert(image),
            lambda image, m: F.rotate(image, _signed(30 * m), _BILINEAR, fill=self.fill),
            lambda image, m: F.posterize(image, 4 - int(4 * m)),
            lambda image, m: F.solarize(image, 255.0 * (1 - m)),
            lambda image, m: self._solarize_add(image, min(128, int(110 * m))),
            *(_enhancing(function) for function in enhance),
            lambda image, m: self._affine(image, shear=(_signed(17 * m), 0.0)),
            lambda image, m: self._affine(image, shear=(0.0, _signed(17 * m))),
            lambda image, m: self._affine(image, shift=(_signed(0.45 * m), 0.0)),
            lambda image, m: self._affine(image, shift=(0.0, _signed(0.45 * m))),
        ]

    def __call__(self, image: Any) -> Any:
        for op in random.choices(self.ops, k=2):
            if random.random() < 0.5:
                image = op(image, min(10.0, max(0.0, random.gauss(7.0, 0.5))) / 10.0)
        return image

    def _affine(
        self,
        image: Any,
        shear: tuple[float, float] = (0.0, 0.0),
        shift: tuple[float, float] = (0.0, 0.0),
    ) -> Any:
        height, width = F.get_size(image)
        moved = [round(shift[0] * width), round(shift[1] * height)]
        return F.affine(image, 0.0, moved, 1.0, list(shear), _BILINEAR, self.fill)

    @staticmethod
    def _solarize_add(image: Any, levels: int) -> Any:
        if isinstance(image, torch.Tensor):
            return torch.where(image < 128, image + levels, image)
        return image.point([i + levels if i < 128 else i for i in range(256)] * 3)


def _enhancing(function: Callable[[Any, float], Any]) -> Callable[[Any, float], Any]:
    return lambda image, m: function(image, max(0.1, 1.0 + _signed(0.9 * m)))


def _signed(value: float) -> float:
    return random.choice((-value, value))


TRANSFORMS: dict[str, Callable[[str], Callable[[Any], Any]]] = {
    "torchvision_resnet50_v2": resnet50_v2,
    "timm_a2": timm_a2,
    "simclr": simclr,
    "dino_v2": dino_v2,
}
_MIXUP_ALPHA = {"torchvision_resnet50_v2": 0.2, "timm_a2": 0.1}


def torchvision_batches(
    recipe: str, root: Path, decoder: str, workers: int, batch_size: int
) -> Any:
    """The recipe as a DataLoader; MixUp and CutMix run in `collate_fn`, as in the references."""
    options: dict[str, Any] = {}
    if recipe in _MIXUP_ALPHA:
        num_classes = len([folder for folder in root.iterdir() if folder.is_dir()])
        mix = v2.RandomChoice(
            [
                v2.MixUp(alpha=_MIXUP_ALPHA[recipe], num_classes=num_classes),
                v2.CutMix(alpha=1.0, num_classes=num_classes),
            ]
        )
        options["collate_fn"] = lambda samples: mix(*default_collate(samples))
    transform = TRANSFORMS[recipe](decoder)
    return baselines.image_folder_batches(
        root, transform, decoder, workers,
        batch_size=batch_size, shuffle=True, drop_last=True, **options,
    )  # fmt: skip


def dali_rand_augment(root: Path, batch_size: int, threads: int) -> Any:
    """The pipeline `randaugment` with DALI's own auto_aug.rand_augment."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.auto_aug import rand_augment

    @pipeline_def(enable_conditionals=True)
    def pipeline() -> Any:
        encoded, labels = fn.readers.file(file_root=str(root), random_shuffle=True, name="reader")
        images = fn.decoders.image_random_crop(encoded, device="cpu", **baselines.CROP)
        images = fn.resize(images, size=[224, 224], interp_type=types.INTERP_LINEAR, antialias=True)
        images = fn.flip(images, horizontal=fn.random.coin_flip(probability=0.5))
        images = rand_augment.rand_augment(
            images, n=2, m=9, num_magnitude_bins=31, shape=(224, 224), fill_value=0
        )
        images = fn.crop_mirror_normalize(
            images, dtype=types.FLOAT, output_layout="CHW", **baselines.LEVELS
        )
        return images, labels

    return pipeline(
        batch_size=batch_size, num_threads=threads, device_id=None, prefetch_queue_depth=2
    )
