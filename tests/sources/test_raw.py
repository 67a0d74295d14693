from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gpupipe.errors import DataError
from gpupipe.sources.raw import Raw
from helpers.arrays import ENGINES, delivered, read


def test_many_samples_a_file_and_their_labels(tmp_path: Path) -> None:
    """As MNIST is stored: a header of 16 bytes, and another file with labels behind 8 bytes."""
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    (tmp_path / "images").write_bytes(bytes(16) + images.tobytes())
    (tmp_path / "labels").write_bytes(bytes(8) + bytes([3, 0, 2, 2, 1]))
    data = {"files": str(tmp_path / "images"), "dtype": "uint8", "shape": [28, 28], "offset": 16}
    index = Raw.model_validate(
        data | {"labels": {"files": str(tmp_path / "labels"), "dtype": "uint8", "offset": 8}}
    ).index()
    assert (index.labels.tolist(), index.classes) == ([3, 0, 2, 2, 1], ["0", "1", "2", "3"])
    assert all(np.array_equal(read(index, i), images[i]) for i in range(5))
    assert index.location(4) == f"{tmp_path}/images:row 4"
    assert Raw.model_validate(data).index().labels.tolist() == [-1] * 5


def test_labels_that_stand_between_the_samples(tmp_path: Path) -> None:
    """As CIFAR-10 is stored, in several files: a byte with the label, and then the image.

    Both engines read what lies at odd addresses.
    """
    images, labels = (
        np.random.default_rng(0).random((6, 3, 4, 5), np.float32),
        np.array([4, 0, 1, 1, 3, 2], np.uint8),
    )
    for n in range(2):
        (tmp_path / f"batch_{n}.bin").write_bytes(
            b"".join(
                bytes([y]) + x.tobytes() for x, y in zip(images[n::2], labels[n::2], strict=True)
            )
        )
    files = str(tmp_path / "batch_{0..1}.bin")
    data = {"source": "raw", "files": files, "dtype": "float32", "shape": [3, 4, 5], "before": 1}
    data["labels"] = {"files": files, "dtype": "uint8", "every": 1 + 240}
    index = Raw.model_validate({k: v for k, v in data.items() if k != "source"}).index()
    assert index.labels.tolist() == [4, 1, 3, 0, 1, 2]
    order = [0, 2, 4, 1, 3, 5]
    for engine in ENGINES:
        found = delivered(
            data,
            [{"random_horizontal_flip": {"p": 1}}, {"normalize": {"mean": 0, "std": 1}}],
            engine,
        )
        assert all(np.array_equal(found[i].numpy(), images[order[i]][..., ::-1]) for i in range(6))


def test_class_folders_with_one_sample_or_several_a_file(tmp_path: Path) -> None:
    for name, content in (("a/0.bin", [1, 2]), ("b/0.raw", [3, 4, 5, 6]), ("b/1.bin", [7, 8])):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.array(content, np.int64).tofile(tmp_path / name)
    index = Raw.model_validate({"root": tmp_path, "dtype": "int64", "shape": [2]}).index()
    assert (index.labels.tolist(), [read(index, i).tolist() for i in range(4)]) == (
        [0, 1, 1, 1],
        [[1, 2], [3, 4], [5, 6], [7, 8]],
    )
    assert [index.location(i) for i in (0, 2)] == [
        f"{tmp_path}/a/0.bin",
        f"{tmp_path}/b/0.raw:row 1",
    ]


def test_complex_numbers_are_pairs(tmp_path: Path) -> None:
    numbers = (np.arange(6) - 1j).astype(np.complex64)
    numbers.tofile(tmp_path / "x.bin")
    source = Raw.model_validate(
        {"files": str(tmp_path / "x.bin"), "dtype": "complex64", "shape": [3]}
    )
    assert np.array_equal(
        read(source.index(), 1), np.stack([numbers[3:].real, numbers[3:].imag], -1)
    )
    assert (source.specs()["array"].layout, source.specs()["array"].dtype) == ("LP", "float32")


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (25, {}, r"25 bytes are not samples of 12 bytes \(float32 \[3\]\): 1 are left over"),
        (
            24,
            {"offset": 5},
            r"19 bytes after the first 5 are not samples of 12 bytes \(float32 \[3\]\): 7 "
            r"are left over",
        ),
        (
            24,
            {"before": 1},
            r"24 bytes are not samples of 13 bytes \(float32 \[3\], 1 before\): 11 are left over",
        ),
        (4, {"offset": 5}, r"only 4 bytes, but data\.offset leaves out 5"),
        (0, {}, "no sample in 1 file"),
        (
            24,
            {"labels": {"files": "Y", "dtype": "uint8"}},
            r"data\.labels: 3 rows in its files for 2 samples",
        ),
        (
            24,
            {"labels": {"files": "Y", "dtype": "int16"}},
            r"y\.bin: 3 bytes are not labels, 2 bytes each: 1 are left over",
        ),
        (
            24,
            {"labels": {"files": "Y", "dtype": "float32", "offset": 3}},
            r"y\.bin: float32 \(0,\) are no labels",
        ),
    ],
)
def test_files_that_are_not_what_is_said(
    tmp_path: Path, size: int, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(size))
    (tmp_path / "y.bin").write_bytes(bytes(3))
    if "labels" in options:
        options = {"labels": options["labels"] | {"files": str(tmp_path / "y.bin")}}
    with pytest.raises(
        DataError, match=rf"{tmp_path}.*{message}" if "labels" not in options else message
    ):
        Raw.model_validate(
            {"files": str(tmp_path / "x.bin"), "dtype": "float32", "shape": [3], **options}
        ).index()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": ">f4"}, "dtype"),
        ({"dtype": "object"}, "dtype"),
        ({"shape": []}, "shape"),
        ({"shape": [0, 3]}, "shape"),
        ({"offset": -1}, "offset"),
        (
            {"labels": {"files": "y", "dtype": "int32", "every": 3}},
            "every is 3, but a label of int32 has 4 bytes",
        ),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Raw.model_validate({"files": "x", "dtype": "float32", "shape": [3], **options})
