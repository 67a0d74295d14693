from pathlib import Path

from gpupipe import config as configs
from gpupipe.bench.contestant import drop_from_page_cache


def resident(file: Path) -> int:
    """Pages of a file that are in the page cache."""
    import ctypes
    import mmap

    with file.open("r+b") as f, mmap.mmap(f.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert (
            ctypes.CDLL(None, use_errno=True).mincore(
                ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), found
            )
            == 0
        )
        return sum(page & 1 for page in found)


def test_cold_drops_the_images_from_the_page_cache(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for n in range(3):
        (tmp_path / "a" / f"{n}.jpg").write_bytes(bytes(100_000))
    checked = configs.read({"data": {"source": "folder", "root": tmp_path}, "pipeline": ["decode"]})
    files = sorted(tmp_path.glob("a/*.jpg"))
    assert all(resident(f) > 20 for f in files), "just written"
    drop_from_page_cache(checked.source.index())
    assert [resident(f) for f in files] == [0, 0, 0]
