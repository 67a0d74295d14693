import argparse

import numpy as np
import pytest


def test_wrong_pixels_zeros_shapes_and_changes_are_found() -> None:
    from first_gpu import decode

    image = np.random.default_rng(0).integers(1, 256, (20, 30, 3), np.uint8)
    off_by_one = image ^ 1
    expected = [image] * 5
    first = [image, off_by_one, np.zeros_like(image), image[:10], image]
    second = [image, off_by_one, np.zeros_like(image), image[:10], off_by_one]
    tally = decode.Tally(["4:2:0", "4:2:0", "gray", "gray", "gray"])
    tally.add(list(map(decode.compared, first, expected, second)))
    found = tally.result()
    assert (
        found["zeros"],
        found["wrong_shape"],
        found["changed_in_second_run"],
        found["identical"],
    ) == (1, 1, 1, 2)
    assert found["worst_image"] == 2
    assert found["kinds"]["4:2:0"]["min"] == pytest.approx(48.13, abs=0.01), (
        "one level off is 10 log10(255^2) dB"
    )
    failed = [
        what for what, holds, _ in decode.judged({"hardware": found}, 5)["checks"] if not holds
    ]
    whats = ("shapes are right", "no image of zeros", "at least 30 dB", "two runs are the same")
    assert failed == [f"hardware: {what}" for what in whats]


def test_decoders_of_a_gpu_take_the_options_that_they_get() -> None:
    from first_gpu import decode
    from nvidia.dali import Pipeline, fn

    from gpupipe.decoders.chain import DecodeOptions
    from gpupipe.engines.dali.operators import ops

    names = decode.decoders(argparse.Namespace(device="gpu"))
    assert list(names) == ["cpu", "CUDA", "hardware", "load 0.9"]
    for name, options in names.items():
        with Pipeline(batch_size=1, num_threads=1, device_id=None):
            node = ops.decode(
                fn.external_source(name="files"),
                "cpu" if name == "cpu" else "gpu",
                DecodeOptions(apply_exif=True),
                options,
            )
        assert node.device == ("cpu" if name == "cpu" else "gpu")
