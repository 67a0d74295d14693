from pathlib import Path

import numpy as np
import pytest
import torch


def test_the_ratio_is_that_of_rounds_to_the_best_of_the_others() -> None:
    import steps

    rounds = {
        "gpupipe": [100.0, 200.0, 300.0],
        "albumentations": [200.0, 100.0, 600.0],
        "torchvision": [400.0, 800.0, 400.0],
    }
    found = steps.summarize("random_invert", rounds)
    assert found["best"] == "albumentations"
    assert found["ratio"] == {"median": 0.75, "min": 0.5, "max": 2.0}
    assert found["goal"]["holds"]
    assert not steps.summarize("hue and saturation", rounds)["goal"]["holds"]  # its bound is 0.5


def test_sixty_microseconds_are_enough() -> None:
    import steps

    found = steps.summarize("random_invert", {"gpupipe": [59.0], "torchvision": [10.0]})
    assert found["goal"]["holds"]
    found = steps.summarize("random_invert", {"gpupipe": [61.0], "torchvision": [10.0]})
    assert not found["goal"]["holds"]


def test_without_extensions_twice_the_best_is_enough() -> None:
    import steps

    found = steps.summarize("hue", {steps.OWN_WITHOUT: [190.0], "torchvision": [100.0]})
    assert found["goal"]["holds"]


def test_sources_alone_are_compared_with_the_first() -> None:
    import steps

    found = steps.summarize(
        "hue", {"gpupipe": [100.0, 100.0], "gpupipe, uint8-HWC-3": [110.0, 120]}
    )
    assert found["ratios"]["gpupipe, uint8-HWC-3"] == pytest.approx(1.15)


def test_torchvision_has_the_transforms_of_every_case() -> None:
    import step_cases
    import step_workers
    from step_case import SIDE

    for name, case in step_cases.CASES.items():
        image = torch.zeros(case.channels[0], SIDE, SIDE, dtype=torch.uint8)
        for run in step_workers._torchvision(case.calls("torchvision"), "torchvision"):
            result = run(image)
            images = result if case.views > 1 else [result]
            assert len(images) == case.views, name
            assert {tuple(i.shape) for i in images} == {(case.channels[1], *case.size)}, name


def test_only_a_result_of_another_dtype_counts_with_its_copy_into_a_batch() -> None:
    import step_workers

    for images in ([np.ones((8, 8, 3), np.uint8)] * 2, [torch.ones(3, 8, 8, dtype=torch.uint8)]):
        kept = step_workers._measure_step(lambda image: image + 1, images, 0.001)
        assert kept.keys() == {"microseconds"}
        wider = step_workers._measure_step(lambda image: image / 255, images, 0.001)
        assert wider.keys() == {"microseconds", "call"}


def test_each_step_has_a_case_or_a_reason_why_it_has_none() -> None:
    from step_cases import CASES, LEFT_OUT

    from gpupipe.pipeline.step_registry import STEPS

    measured = {name for case in CASES.values() for name in case.step}
    assert measured | LEFT_OUT.keys() == set(STEPS.builtin_names)
    assert not measured & LEFT_OUT.keys()


@pytest.mark.parametrize(
    "name",
    [
        "grayscale to 1",
        "rgb",
        "five_crop 224",
        "ten_crop 224",
        "fixed_size_crop 640",
        "letterbox 480x640",
        "resize 256",
        "resize 256, center_crop 224",
        "random_resize 256",
        "random_shortest_size 384",
        "scale_jitter 640",
        "to_dtype float32",
    ],
)
def test_a_case_that_draws_nothing_makes_torchvisions_pixels(name: str, tmp_path: Path) -> None:
    import step_loaders
    import step_workers
    from step_case import SIDE
    from step_cases import CASES

    case, channels = CASES[name], CASES[name].channels[0]
    images = np.random.default_rng(0).integers(0, 256, (1, channels, SIDE, SIDE), np.uint8)
    source = f"uint8-CHW-{channels}"
    np.save(tmp_path / f"steps-{SIDE}-{source}.npy", images)
    (transform,) = step_workers._torchvision(case.calls("torchvision"), "torchvision")
    steps = [case.step, *case.then]
    with step_loaders._load(tmp_path, source, (SIDE, SIDE), case, steps) as loader:
        (batch,) = loader
    fields = [field for name, field in batch.items() if name != "label"]
    assert len(fields) == case.views
    expected = transform(torch.from_numpy(images[0]))
    for field, image in zip(fields, expected if case.views > 1 else [expected], strict=True):
        assert (field[0].shape, field[0].dtype) == (image.shape, image.dtype)
        # Sums of colours that end in .5 may be rounded the other way.
        assert (field[0].double() - image.double()).abs().mean() < 1e-4
