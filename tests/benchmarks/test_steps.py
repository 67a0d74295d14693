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

    image = torch.zeros(3, step_cases.SIDE, step_cases.SIDE, dtype=torch.uint8)
    for name, case in step_cases.CASES.items():
        for run in step_workers._torchvision(case.calls("torchvision"), "torchvision"):
            result = run(image)
            assert tuple(result.shape) == (3, case.side, case.side), name
