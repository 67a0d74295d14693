"""Every way in which HDF5 stores numbers: what gpupipe reads is what h5py reads."""

from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from numpy.typing import NDArray

from gpupipe.dataset.chunk_column import ChunkColumn
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.errors import DataError
from gpupipe.formats import DamagedError
from gpupipe.formats.stored_arrays import StoreRequest
from helpers.array_stores import (
    COUNT,
    IMAGES,
    SHAPE,
    index_stores,
    make_jpegs,
    read_all,
    read_hdf5,
    write_hdf5,
)

ROWS = (5, *SHAPE)
PLAIN: dict[str, dict[str, Any]] = {"contiguous": {}, "chunks": {"chunks": ROWS}}
CODED: dict[str, dict[str, Any]] = {
    "gzip": {"chunks": ROWS, "compression": "gzip"},
    "all-of-gzip": {"chunks": ROWS, "compression": 9, "shuffle": True, "fletcher32": True},
    "lzf-grid": {"chunks": (4, 5, 6, 2), "compression": "lzf", "shuffle": True},
    "grid": {"chunks": (4, 5, 6, 2)},
    "blosc": {"chunks": ROWS, **hdf5plugin.Blosc(cname="zstd")},
    "zstd": {"chunks": ROWS, **hdf5plugin.Zstd()},
    "one-row": {"chunks": (1, *SHAPE), "compression": "gzip"},
}


def numbers(dtype: str) -> NDArray[Any]:
    """The images as other numbers."""
    return (IMAGES.astype(np.int64) * 3 - 40).astype(dtype)


@pytest.mark.parametrize("userblock", [0, 1024])
def test_each_layout_and_filter(tmp_path: Path, userblock: int) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=userblock) as file:
        for name, options in (PLAIN | CODED).items():
            file.create_dataset(name, data=IMAGES, **options)
    index = index_stores([path], {name: name for name in PLAIN | CODED})
    for name in PLAIN | CODED:
        assert np.array_equal(read_all(index, name), IMAGES), name
        assert isinstance(index.columns[name], SpanColumn if name in PLAIN else ChunkColumn)
    assert index.location(3) == f"{path}:contiguous row 3"


@pytest.mark.parametrize("dtype", ["<f2", "<f8", ">f4", ">i2", ">u8", "bool", "<c8", ">c16"])
def test_each_dtype(tmp_path: Path, dtype: str) -> None:
    array = numbers(dtype)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["plain"] = array
        file.create_dataset("coded", data=array, chunks=ROWS, compression="gzip", shuffle=True)
    index = index_stores([path], {"plain": "plain", "coded": "coded"})
    native = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "c":
        native = native.view(native.real.dtype).reshape(*array.shape, 2)
        assert index.extra["pairs"] == {"plain": True, "coded": True}
    for name in ("plain", "coded"):
        read = read_all(index, name)
        assert read.dtype == native.dtype
        assert np.array_equal(read, native)


def test_what_was_never_written_has_the_fill_value(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        holes = file.create_dataset("holes", (22, 12), ">i2", chunks=(8, 6), fillvalue=-7)
        holes[3:9, :5] = 1
        file.create_dataset("never", (22, 4), "f4", fillvalue=2.5)
        file.create_dataset("no-chunk", (22, 4), "f8", chunks=(3, 4), compression="gzip")
        expected = {name: file[name][...] for name in file}
    index = index_stores([path], {name: name for name in expected})
    for name, array in expected.items():
        assert np.array_equal(read_all(index, name), array), name


def test_rows_that_were_cut_off_by_a_resize_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", data=IMAGES, chunks=ROWS, maxshape=(None, *SHAPE))
        data.resize(7, 0)
    assert np.array_equal(read_all(index_stores([path], {"x": "x"})), IMAGES[:7])


@pytest.mark.parametrize("options", [{}, {"chunks": (3,), "compression": "gzip"}])
def test_ragged_rows_are_byte_ranges_of_the_file(tmp_path: Path, options: dict[str, Any]) -> None:
    path, jpegs = tmp_path / "a.h5", make_jpegs(7)
    with h5py.File(path, "w", userblock_size=512) as file:
        images = file.create_dataset("images", (8,), h5py.vlen_dtype(np.uint8), **options)
        series = file.create_dataset("series", (8,), h5py.vlen_dtype("<f4"), **options)
        for n, jpeg in enumerate(jpegs):  # row 7 of the images is never written
            images[n] = jpeg
        for n in range(8):
            series[n] = np.arange(n + 1) / 3
    index = index_stores([path], {"image": "images", "series": "series"})
    image, column = index.columns["image"], index.columns["series"]
    assert isinstance(image, SpanColumn)
    assert image.array is None
    assert [len(image.read(np.array([n]))[0]) for n in range(8)] == [*map(len, jpegs), 0]
    assert all(np.array_equal(index.read(n), jpeg) for n, jpeg in enumerate(jpegs))
    assert column.array is not None
    assert [column.array.shape_of(n) for n in range(8)] == [(n + 1,) for n in range(8)]
    assert np.array_equal(
        index.read(5, "series").view("f4"), np.arange(6, dtype="f4") / np.float32(3)
    )


def test_opaque_bytes_are_image_files(tmp_path: Path) -> None:
    path, jpegs = tmp_path / "a.h5", make_jpegs(3)
    with h5py.File(path, "w") as file:
        for n, jpeg in enumerate(jpegs):
            file[f"images/{n}"] = np.void(jpeg.tobytes())
    index = index_stores([path], {"image": "."}, groups="/images")
    assert index.columns["image"].array is None
    assert all(np.array_equal(index.read(n), jpeg) for n, jpeg in enumerate(jpegs))


def write_virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((COUNT, 2), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (COUNT, 2))
    file.create_virtual_dataset("x", layout)


def write_compact(file: h5py.File) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((COUNT, 2))
    h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_FLOAT, space, plist)


REFUSED: dict[str, tuple[Any, str]] = {
    "virtual": (write_virtual, "'x': a virtual dataset.*name those in data.files"),
    "compact": (write_compact, "'x': its numbers are in the header of the file"),
    "external": (
        lambda f: f.create_dataset("x", (COUNT, 2), "f4", external=[("raw.bin", 0, 8 * COUNT)]),
        "'x': its numbers are in other files",
    ),
    "filter": (
        lambda f: f.create_dataset("x", data=IMAGES, chunks=ROWS, scaleoffset=0),
        r"'x': the filter scaleoffset \(6\), which gpupipe cannot undo",
    ),
    "text": (lambda f: f.create_dataset("x", data=["a"] * COUNT), "'x': texts, and no numbers"),
    "fields": (
        lambda f: f.create_dataset("x", data=np.zeros(COUNT, [("a", "f4"), ("b", "i4")])),
        "'x': an array of .*'a'",
    ),
    "scalar": (lambda f: f.create_dataset("x", data=1.0), "'x' is a single number.*data.groups"),
    "group": (lambda f: f.create_group("x/y"), "a group, and no array, 'x' in it"),
    "link": (
        lambda f: f.__setitem__("x", h5py.ExternalLink("nowhere.h5", "/x")),
        "no array 'x' in it",
    ),
    "other float": (
        lambda f: h5py.h5d.create(f.id, b"x", _odd_float(), h5py.h5s.create_simple((COUNT, 2))),
        "'x': ",
    ),
}


def _odd_float() -> Any:
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_ebias(100)
    return kind


@pytest.mark.parametrize("name", REFUSED)
def test_what_gpupipe_cannot_read_is_refused_with_its_path(tmp_path: Path, name: str) -> None:
    write, message = REFUSED[name]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write(file)
    with pytest.raises(ValueError, match=message):
        read_hdf5(tmp_path / "a.h5", StoreRequest({"x": "x"}, None, {}, None))


def test_a_file_that_is_cut_off_or_no_hdf5(tmp_path: Path) -> None:
    request = StoreRequest({"image": "/images"}, None, {}, None)
    path = write_hdf5(tmp_path / "a.h5", chunks=ROWS, compression="gzip")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedError, match=r"libhdf5 cannot read it: .*truncated"):
        read_hdf5(path, request)
    path.write_bytes(b"no HDF5" * 100)
    with pytest.raises(DamagedError, match=r"libhdf5 cannot read it: .*signature"):
        read_hdf5(path, request)
    with pytest.raises(FileNotFoundError):
        read_hdf5(tmp_path / "none.h5", request)


def test_a_damaged_chunk_names_its_sample(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5", chunks=ROWS, compression="gzip", fletcher32=True)
    index = index_stores([path], {"image": "/images"})
    column = index.columns["image"]
    assert isinstance(column, ChunkColumn)
    begin = int(column.table.places.offset[1])
    content = bytearray(path.read_bytes())
    content[begin + 40] ^= 0xFF
    path.write_bytes(content)
    assert np.array_equal(column.read(np.array([4]))[0].reshape(SHAPE), IMAGES[4])
    with pytest.raises(ValueError, match="damaged"):
        column.read(np.array([5]))


def test_files_that_do_not_fit_each_other(tmp_path: Path) -> None:
    first = write_hdf5(tmp_path / "a.h5")
    other = write_hdf5(tmp_path / "b.h5", numbers("f4"))
    with pytest.raises(DataError, match=r"b\.h5: 'image' is of float32, but of uint8 in .*a\.h5"):
        index_stores([first, other], {"image": "/images"})
    flat = write_hdf5(tmp_path / "c.h5", IMAGES[..., 0])
    with pytest.raises(DataError, match=r"c\.h5: samples of 'image' have the shape \[12, 10\]"):
        index_stores([first, flat], {"image": "/images"})
