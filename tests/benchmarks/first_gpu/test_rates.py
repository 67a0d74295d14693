import argparse
import io

import pytest
from PIL import Image


@pytest.mark.parametrize(
    ("said", "who"),
    [
        ({"jpeg_utilisation": 0.6}, "hardware"),
        ({"jpeg_utilisation": 0.0}, "CUDA or the CPU"),
        ({}, "unknown: NVML does not tell"),
    ],
)
def test_the_jpeg_engines_tell_who_decoded(said: dict[str, float], who: str) -> None:
    from first_gpu import rates

    assert rates.decoded_by(said) == who


def test_files_of_every_kind_are_different_and_of_their_size() -> None:
    from first_gpu import rates
    from pictures import KINDS

    arguments = argparse.Namespace(quick=True, device="cpu")
    for kind in KINDS:
        files = rates._files(kind, "small", arguments)
        assert len({file.tobytes() for file in files}) == len(files) == 4
        with Image.open(io.BytesIO(files[0].tobytes())) as image:
            assert image.size == (125, 93)
            assert image.mode == ("L" if kind == "gray" else "RGB")


def test_every_decoder_of_a_gpu_has_a_process_of_its_own() -> None:
    from first_gpu import rates

    loads = [options["hw_decoder_load"] for options in rates.decoders("gpu").values()]
    assert sorted(loads) == [0.0, 0.9, 1.0]
