"""zarr: samples in the arrays of Zarr stores, one along the first axis, or one in a group."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from gpupipe.dataset.shards import find_folders
from gpupipe.formats.store_files import list_store
from gpupipe.sources.helpers.array_stores import ArrayStoreSource


class Zarr(ArrayStoreSource):
    """Arrays in Zarr stores, of version 2 or 3, in folders of this machine. Needs zarr.

    The package zarr finds where the chunks are, once, in a process of its own, and is on no batch's
    way. Chunks that are not compressed are read where they are, as .npy files are. Others are read
    and decoded by the engine's threads: blosc, zstd, gzip and further codecs of numcodecs, and the
    shards of version 3 (sharding_indexed). Nothing is unpickled.

    Attributes:
        stores: The folder of a store, or several. Such a path may have * and ?, and {000..012} for
            numbers. ~ stands for the home directory.
        fields: The array of each field: {FIELD: PATH}, where FIELD is the name in a batch, such as
            {image: /images, mask: /masks}. The first field is the one that steps work on. Each row
            along the first axis is a sample. "/" is a store that is an array.
        label: The array of labels, whole numbers or texts; null if there are none. With `groups`,
            also "@NAME", an attribute of the sample's group.
        values: The array of each value: {VALUE: PATH}, with one or several numbers a sample.
        groups: The group whose members are the samples, such as /scans. The other paths are then
            relative to each member: {image: image} is /scans/0001/image. "." is a member that is an
            array itself. null: rows are samples.
        layout: One letter for each axis of a sample, such as HWC: of the first field, or of each
            field, {image: HWC, mask: HW}. By default L, HW, CHW or CDHW, by the number of axes.
        order: rows: shuffled samples are a permutation of all rows. chunks: the chunks are
            shuffled, and the samples of `buffer` chunks are mixed. That is no full permutation, but
            each chunk is decoded once an epoch. Without loader.shuffle, it changes nothing.
        buffer: With `order: chunks`: the number of chunks that are mixed. null: 64, or as many as
            `chunk_cache` holds.
        chunk_cache: The bytes of decoded chunks that each process keeps, such as 1GB.
    """

    name: ClassVar[str] = "zarr"
    modules: ClassVar[tuple[str, ...]] = ("zarr",)

    stores: str | tuple[str, ...] = Field(min_length=1)

    def list_stores(self) -> list[Path]:
        return find_folders(self.stores, "data.stores")

    def list_files(self) -> list[Path]:
        return [store / name for store in self.list_stores() for name in list_store(str(store))[0]]
