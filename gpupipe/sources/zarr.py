"""zarr: samples in the arrays of Zarr stores, one along the first axis, or one in a group."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from gpupipe.dataset.shards import find_folders
from gpupipe.formats.store_files import ZIP, list_store
from gpupipe.sources.helpers.array_stores import OPTIONS, ArrayStoreSource


class Zarr(ArrayStoreSource):
    __doc__ = f"""Arrays in Zarr stores, of version 2 or 3: folders, or ZIP files. Needs zarr.

The package zarr finds where the chunks are, once, in a process of its own, and is on no batch's
way. Chunks that are not compressed are read where they are, as .npy files are. Others are read
and decoded by the engine's threads: blosc, zstd, gzip and further codecs of numcodecs, and the
shards of version 3 (sharding_indexed). Nothing is unpickled.

Attributes:
    stores: The folder or the ZIP file of a store, or several. A ZIP file is not compressed: it is
        written by zarr.storage.ZipStore, or zip -0. Such a path may have * and ?, and {{000..012}}
        for numbers. ~ stands for the home directory.
{OPTIONS}"""

    name: ClassVar[str] = "zarr"
    modules: ClassVar[tuple[str, ...]] = ("zarr",)
    shard_option: ClassVar[str] = "stores"

    stores: str | tuple[str, ...] = Field(min_length=1)

    def list_stores(self) -> list[Path]:
        return find_folders(self.stores, "data.stores", ZIP)

    def list_files(self) -> list[Path]:
        files: list[Path] = []
        for store in self.list_stores():
            files += [store] if store.is_file() else map(Path, list_store(str(store)).paths)
        return files
