"""hdf5: samples in the datasets of HDF5 files, one along the first axis, or one in a group."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from gpupipe.dataset.shards import find_files
from gpupipe.sources.helpers.array_stores import ArrayStoreSource


class Hdf5(ArrayStoreSource):
    """Arrays or image files in HDF5 files. Needs h5py and numcodecs.

    libhdf5 finds where the bytes are, once, in a process of its own, and is on no batch's way.
    Contiguous datasets, chunks without filters, and ragged rows are read where they are, as .npy
    files are. Compressed chunks are read and decoded by the engine's threads: gzip, shuffle,
    fletcher32, lzf (with imagecodecs), blosc and zstd. Nothing is unpickled.

    A field of uint8 with one axis a sample, ragged or not, holds image files if its first sample is
    one; else arrays.

    Attributes:
        files: One pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands for
            the home directory.
        fields: The dataset of each field: {FIELD: PATH}, where FIELD is the name in a batch, such
            as {image: /images, mask: /masks}. The first field is the one that steps work on. Each
            row along the first axis is a sample.
        label: The dataset of labels, whole numbers or texts; null if there are none. With `groups`,
            also "@NAME", an attribute of the sample's group.
        values: The dataset of each value: {VALUE: PATH}, with one or several numbers a sample.
        groups: The group whose members are the samples, such as /scans. The other paths are then
            relative to each member: {image: image} is /scans/0001/image. "." is a member that is a
            dataset itself. null: rows are samples.
        layout: One letter for each axis of a sample, such as HWC: of the first field, or of each
            field, {image: HWC, mask: HW}. By default L, HW, CHW or CDHW, by the number of axes.
        order: rows: shuffled samples are a permutation of all rows. chunks: the chunks are
            shuffled, and the samples of `buffer` chunks are mixed. That is no full permutation, but
            each chunk is decoded once an epoch. Without loader.shuffle, it changes nothing.
        buffer: With `order: chunks`: the number of chunks that are mixed. null: 64, or as many as
            `chunk_cache` holds.
        chunk_cache: The bytes of decoded chunks that each process keeps, such as 1GB.
    """

    name: ClassVar[str] = "hdf5"
    modules: ClassVar[tuple[str, ...]] = ("h5py", "numcodecs")
    shard_option: ClassVar[str] = "files"

    files: str | tuple[str, ...] = Field(min_length=1)

    def list_stores(self) -> list[Path]:
        return find_files(self.files, "data.files")

    def list_files(self) -> list[Path]:
        return self.list_stores()
