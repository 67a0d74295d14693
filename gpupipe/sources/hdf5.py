"""hdf5: samples in the datasets of HDF5 files, one along the first axis, or one in a group."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from gpupipe.dataset.shards import find_files
from gpupipe.sources.helpers.array_stores import OPTIONS, ArrayStoreSource


class Hdf5(ArrayStoreSource):
    __doc__ = f"""Arrays or image files in HDF5 files. Needs h5py and numcodecs.

libhdf5 finds where the bytes are, once, in a process of its own, and is on no batch's way.
Contiguous datasets, chunks without filters, and ragged rows are read where they are, as .npy
files are. Compressed chunks are read and decoded by the engine's threads: gzip, shuffle,
fletcher32, lzf (with imagecodecs), blosc and zstd. Nothing is unpickled.

A field of uint8 with one axis a sample, ragged or not, holds image files if its first sample is
one; else arrays.

Attributes:
    files: One pattern or several: paths with * and ?, and {{000..012}} for numbers. ~ stands for
        the home directory.
{OPTIONS}"""

    name: ClassVar[str] = "hdf5"
    modules: ClassVar[tuple[str, ...]] = ("h5py", "numcodecs")
    shard_option: ClassVar[str] = "files"

    files: str | tuple[str, ...] = Field(min_length=1)

    def list_stores(self) -> list[Path]:
        return find_files(self.files, "data.files")

    def list_files(self) -> list[Path]:
        return self.list_stores()
