import threading
from typing import Any

import albumentations as A
import numpy as np
import pytest
import torch

from gpupipe.albumentations_adapter.calling import AlbumentationsTransform

IMAGE = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 40, 50), np.uint8))


def make(transform: Any) -> AlbumentationsTransform:
    return AlbumentationsTransform(transform.to_dict()["transform"])


def test_the_generator_seeds_all_draws() -> None:
    call = make(
        A.Compose([A.CLAHE(p=0.5), A.OneOf([A.GridDistortion(), A.ElasticTransform()], p=1)])
    )
    made = [call(IMAGE, np.random.default_rng(seed)) for seed in (1, 2, 3, 1, 2, 3)]
    assert all(torch.equal(a, b) for a, b in zip(made[:3], made[3:], strict=True))
    assert not torch.equal(made[0], made[1])
    assert made[0].shape == IMAGE.shape
    assert made[0].dtype == torch.uint8


def test_it_is_what_the_transform_makes_with_that_seed() -> None:
    transform = A.ColorJitter(p=1)
    transform.set_random_seed(int(np.random.default_rng(7).integers(2**32)))
    expected = transform(image=IMAGE.permute(1, 2, 0).numpy())["image"]
    made = make(transform)(IMAGE, np.random.default_rng(7))
    assert np.array_equal(made.permute(1, 2, 0).numpy(), expected)


def test_threads_do_not_mix_their_draws() -> None:
    call = make(A.GridDistortion(p=1))
    expected = [call(IMAGE, np.random.default_rng(n)) for n in range(40)]
    made: dict[int, torch.Tensor] = {}

    def run(first: int) -> None:
        for n in range(first, 40, 4):
            made[n] = call(IMAGE, np.random.default_rng(n))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(made[n], expected[n]) for n in range(40))


def test_a_gray_image_keeps_its_axis_of_channels() -> None:
    for transform in (A.CLAHE(p=1), A.Affine(rotate=20, p=1), A.MedianBlur(p=1)):
        made = make(transform)(IMAGE[:1], np.random.default_rng(0))
        assert made.shape == (1, 40, 50)


class Mirror(A.ImageOnlyTransform):
    """A transform of the user's."""

    def apply(self, img: Any, **params: Any) -> Any:
        return img[:, ::-1]


def test_the_module_of_a_class_of_ones_own_is_imported() -> None:
    description = Mirror(p=1).to_dict()["transform"]
    assert description["__class_fullname__"].endswith("test_calling.Mirror")
    made = AlbumentationsTransform(description)(IMAGE, np.random.default_rng(0))
    assert torch.equal(made, IMAGE.flip(-1))
    with pytest.raises(ImportError, match="no_such_module"):
        AlbumentationsTransform(description | {"__class_fullname__": "no_such_module.Mirror"})
