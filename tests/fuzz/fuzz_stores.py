"""Fuzzes the sources hdf5 and zarr: whatever libhdf5, zarr and the codecs do with damaged files,
this process gets samples or a DataError that names the store, and its memory stays bounded.

# damaged HDF5 files, and as many Zarr stores, a third of them ZIP files
python tests/fuzz/fuzz_stores.py 2000
"""

import io
import json
import resource
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import zarr
from fuzzing import damaged

from gpupipe.dataset.store_index import Stores, build_index
from gpupipe.errors import DataError
from gpupipe.formats.stored_arrays import StoreRequest
from gpupipe.runtime.progress import ignore_progress
from gpupipe.sources.helpers.store_reader import StoreReader

SECONDS = 5
"""Of CPU, for one store."""
_MAX_GROWTH_KB = 1_000_000
IMAGES = np.random.default_rng(1).integers(0, 40, (9, 6, 5), np.uint8)
ROWS, GROUPS = (
    StoreRequest({"x": "/x"}, "/y", {"v": "/v"}, None),
    StoreRequest({"x": "x"}, "@kind", {}, "/g"),
)


def write_seeds(folder: Path) -> list[tuple[bytes, StoreRequest]]:
    """Return small HDF5 files of every layout, and what to read of each."""
    kinds = [{}, {"chunks": (2, 6, 5)}, {"chunks": (4, 3, 5), "compression": "gzip"}]
    kinds += [{"chunks": (4, 6, 5), "compression": "lzf", "shuffle": True, "fletcher32": True}]
    seeds = []
    for number in range(2 * len(kinds) + 3):
        path = folder / "seed.h5"
        version = ("earliest", "latest")[number % 2]
        with h5py.File(path, "w", libver=version) as file:
            if number < 2 * len(kinds):
                file.create_dataset("x", data=IMAGES, **kinds[number // 2])
            elif number < 2 * len(kinds) + 2:
                ragged = file.create_dataset("x", (9,), h5py.vlen_dtype(np.uint8))
                for n in range(9):
                    ragged[n] = IMAGES[n].reshape(-1)[: 20 + n]
            file["y"] = np.arange(9)
            file["v"] = np.arange(18.0).reshape(9, 2)
            for n in range(3):
                group = file.create_group(f"g/{n}")
                group["x"] = IMAGES[n]
                group.attrs["kind"] = "ab"[n % 2]
        seeds.append((path.read_bytes(), GROUPS if number == 2 * len(kinds) + 2 else ROWS))
    return seeds


def write_stores(folder: Path) -> list[tuple[Path, list[Path]]]:
    """Write Zarr stores of both versions; return each with its files of metadata."""
    stores = []
    for version in (2, 3):
        path = folder / f"seed{version}.zarr"
        group = zarr.open_group(path, mode="w", zarr_format=version)
        more = {"shards": (4, 6, 5)} if version == 3 else {}
        group.create_array("x", data=IMAGES, chunks=(2, 6, 5), **more)
        group.create_array("y", data=np.arange(9))
        group.create_array("v", data=np.arange(18.0).reshape(9, 2))
        names = (".zarray", ".zgroup", "zarr.json")
        stores.append((path, sorted(p for p in path.rglob("*") if p.name in names)))
    return stores


def pack(store: Path) -> bytes:
    """Return a store as a ZIP file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for file in sorted(store.rglob("*")):
            archive.write(file, file.relative_to(store))
    return content.getvalue()


def read_store(reader: StoreReader, path: Path, request: StoreRequest) -> str:
    """Index a store and read every sample; return what became of it."""
    try:
        contents = reader.read([path], request, ignore_progress)
        index = build_index(Stores([path], contents), request.fields, 1_000_000, lambda _: False)
    except DataError as e:
        assert str(path) in str(e), e
        return "ended its process" if "ended its process" in str(e) else "refused"
    column, lost = index.columns["x"], False
    for row in range(min(len(index), 50)):
        try:
            column.read(np.array([row]))
        except (OSError, ValueError):
            lost = True
    return "a sample is lost" if lost else "taken"


def mutate_json(text: bytes, rng: np.random.Generator) -> bytes:
    """Return metadata with some value replaced, or bytes changed."""
    if rng.integers(3) == 0:
        return damaged(text, rng)
    value = json.loads(text)
    parents = [value]
    for parent in parents:
        inner = parent.values() if isinstance(parent, dict) else parent
        parents += [part for part in inner if isinstance(part, dict | list) and part]
    parent = parents[int(rng.integers(len(parents)))]
    key = list(parent)[int(rng.integers(len(parent)))] if isinstance(parent, dict) else 0
    others = [None, -1, 0, 1 << 40, 1 << 70, 1.5, "", "<f4", "pickle", [], {}, [1 << 30], True]
    parent[key] = others[int(rng.integers(len(others)))]
    return json.dumps(value).encode()


def run(count: int, folder: Path, seed: int = 0) -> Counter[tuple[str, str]]:
    """Read `count` damaged HDF5 files and as many Zarr stores; return how often each ended how."""
    rng, counts = np.random.default_rng(seed), Counter[tuple[str, str]]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seeds = write_seeds(folder)
    with StoreReader("hdf5", SECONDS) as reader:
        for n in range(count):
            content, request = seeds[n % len(seeds)]
            path = folder / f"{n}.h5"
            path.write_bytes(content if n < len(seeds) else damaged(content, rng))
            counts["hdf5", read_store(reader, path, request)] += 1
            path.unlink()
    stores = write_stores(folder)
    packed = [pack(source) for source, _ in stores]
    with StoreReader("zarr", SECONDS) as reader, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(count):
            source, files = stores[n % len(stores)]
            if n % 3 == 2:
                path = folder / f"{n}.zip"
                path.write_bytes(damaged(packed[n % len(stores)], rng))
                counts["zarr", read_store(reader, path, ROWS)] += 1
                path.unlink()
                continue
            path = folder / f"{n}.zarr"
            shutil.copytree(source, path)
            if n >= len(stores):
                file = path / files[int(rng.integers(len(files)))].relative_to(source)
                file.write_bytes(mutate_json(file.read_bytes(), rng))
            counts["zarr", read_store(reader, path, ROWS)] += 1
            shutil.rmtree(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < _MAX_GROWTH_KB, f"{grown:,} kB more"
    return counts


if __name__ == "__main__":
    for outcome, number in sorted(run(int(sys.argv[1]), Path(tempfile.mkdtemp())).items()):
        print(*outcome, number)
