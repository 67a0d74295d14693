"""No file ends a run: in processes of their own, since what is wrong here would take the process
down.
"""

import json
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe.decoders.chain import DecodeOptions
from gpupipe.decoders.decoder import CannotDecodeError
from gpupipe.engines.dali.files import ImageFiles
from helpers import forked_python, loaders
from helpers.image_files import encoded, png_chunk

ENGINES = {
    "dali": {"engine": "dali", "threads": 2},
    "torchvision": {"engine": "dataloader", "workers": 0, "decoder": "torchvision"},
    "pil": {"engine": "dataloader", "workers": 0, "decoder": "pil"},
    "cpu": {"engine": "cpu", "threads": 2},
}
SIDE = 64
MEMORY = 2 << 30
PROGRAM = """
import json, sys
from pathlib import Path
import gpupipe

root, options = sys.argv[1], json.loads(sys.argv[2])
delivered = []
config = {"data": {"source": "folder", "root": root}, "pipeline": ["decode"]}
options |= {"on_error": "skip", "max_bad": 0.9, "ids": True}
with gpupipe.load(config, device="cpu", **options) as loader:
    for _ in range(2):
        ids = [i for batch in loader for i in batch["id"].tolist()]
        delivered.append([loader.index.location(i) for i in ids])
lines = list(open(options["quarantine"])) if len(loader.engine.quarantine) else []
bad = [json.loads(line)["path"] for line in lines]
status = Path("/proc/self/status").read_text()
print(json.dumps({
    "delivered": delivered,
    "bad": bad,
    # not ru_maxrss, which counts what the parent had when it started this process
    "megabytes": int(status.partition("VmHWM:")[2].split()[0]) / 1024,
}))
"""


def noise(seed: int = 0) -> Image.Image:
    levels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    return Image.fromarray(levels)


def folder(root: Path, files: dict[str, bytes], good: int) -> Path:
    (root / "class").mkdir(parents=True)
    for n in range(good):
        (root / "class" / f"good_{n:03}.jpg").write_bytes(encoded(noise(n), "JPEG"))
    for name, content in files.items():
        (root / "class" / name).write_bytes(content)
    return root


def run_engine(root: Path, engine: str, tmp_path: Path, batch_size: int) -> dict[str, object]:
    options = ENGINES[engine] | {
        "batch_size": batch_size,
        "quarantine": str(tmp_path / "bad.jsonl"),
    }
    done = forked_python.run(["-W", "ignore", "-c", PROGRAM, root, json.dumps(options)])
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    said: dict[str, object] = json.loads(done.stdout)
    return said


def check(root: Path, engine: str, tmp_path: Path, batch_size: int = 256) -> dict[str, object]:
    """Every good file comes once in each of two epochs, and every other is listed."""
    said = run_engine(root, engine, tmp_path, batch_size)
    good = sorted(map(str, root.glob("*/good_*")))
    assert [sorted(epoch) for epoch in said["delivered"]] == [good, good]
    bad = sorted(str(p) for p in root.glob("*/*") if not p.name.startswith("good_"))
    assert sorted(said["bad"]) == bad  # type: ignore[call-overload]
    return said


@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_of_32_bits_in_a_large_batch(tmp_path: Path, engine: str) -> None:
    """DALI's decoder dies of them: SIGSEGV in 3 of 3 runs."""
    levels = np.arange(SIDE * SIDE, dtype=np.int32).reshape(SIDE, SIDE)
    files = {f"deep_{n}.tif": encoded(Image.fromarray(levels), "TIFF") for n in range(8)}
    files |= {
        f"real_{n}.tif": encoded(Image.fromarray(levels.astype(np.float32)), "TIFF")
        for n in range(8)
    }
    check(folder(tmp_path / "data", files, 240), engine, tmp_path)


def damaged_pngs() -> dict[str, bytes]:
    """Turned bits, and chunks dropped and swapped: each a file that no decoder can read."""
    whole = encoded(noise(), "PNG")
    rng = np.random.default_rng(0)
    files = {}
    for n in range(12):
        data = bytearray(whole)
        data[int(rng.integers(45, len(data) - 20))] ^= 1 << int(rng.integers(8))
        files[f"bit_{n}.png"] = bytes(data)
    end = whole.index(b"IEND") - 4
    files["dropped.png"] = whole[:33] + whole[end:]
    files["swapped.png"] = whole[:8] + whole[33:end] + whole[8:33] + whole[end:]
    short = zlib.compress(b"\0" * 100)
    chunk = struct.pack(">I", len(short)) + b"IDAT" + short
    files["short.png"] = whole[:33] + chunk + struct.pack(">I", zlib.crc32(chunk[4:])) + whole[end:]
    return files


@pytest.mark.parametrize("engine", ENGINES)
def test_damaged_pngs(tmp_path: Path, engine: str) -> None:
    """torchvision 0.29 dies of half of them: SIGSEGV."""
    check(folder(tmp_path / "data", damaged_pngs(), 30), engine, tmp_path, 32)


def large_jpeg() -> bytes:
    data = bytearray(encoded(noise(), "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", 65000, 65000)
    return bytes(data) + bytes(100_000)


def large_png() -> bytes:
    rows = zlib.compressobj(9, wbits=-15)
    block = rows.compress(bytes(8126 * 650)) + rows.flush(zlib.Z_FULL_FLUSH)
    checksum = struct.pack(">HH", 8126 * 65000 % 65521, 1)  # Adler-32 of so many zeros
    packed = b"\x78\xda" + 100 * block + rows.flush() + checksum
    header = struct.pack(">IIBBBBB", 65000, 65000, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", packed)
        + png_chunk(b"IEND", b"")
    )


def large_tiff() -> bytes:
    data = encoded(noise().convert("L"), "TIFF", compression="tiff_lzw")
    for tag in (256, 257):
        place = (
            data.rindex(struct.pack("<HHI", tag, 4, 1))
            if struct.pack("<HHI", tag, 4, 1) in data
            else data.rindex(struct.pack("<HHI", tag, 3, 1))
        )
        data = data[:place] + struct.pack("<HHII", tag, 4, 1, 65000) + data[place + 12 :]
    return data


BOMBS: dict[str, Callable[[], bytes]] = {
    "x.jpg": large_jpeg,
    "x.png": large_png,
    "x.tif": large_tiff,
}


@pytest.mark.parametrize("engine", ENGINES)
def test_images_too_large_are_refused_before_they_are_decoded(tmp_path: Path, engine: str) -> None:
    files = {name: make() for name, make in BOMBS.items()}
    assert max(map(len, files.values())) < 1 << 20
    said = check(folder(tmp_path / "data", files, 30), engine, tmp_path, 64)
    assert said["megabytes"] < MEMORY / 2**20  # type: ignore[operator]
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert all(
        "65,000 x 65,000 pixels, more than data.max_pixels=178,956,970" in line["reason"]
        for line in lines
    )


def scans(count: int) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    data = encoded(noise(), "JPEG", progressive=True)
    last, end = data.rindex(b"\xff\xda"), data.rindex(b"\xff\xd9")
    return data[:end] + data[last:end] * (count - data.count(b"\xff\xda")) + data[end:]


@pytest.mark.parametrize("engine", ENGINES)
def test_jpegs_of_more_than_100_scans_are_refused(tmp_path: Path, engine: str) -> None:
    """Each costs a decoder a pass over the image, and may have 12 bytes."""
    files = {"good_scans.jpg": scans(100), "few.jpg": scans(101), "many.jpg": scans(1000)}
    check(folder(tmp_path / "data", files, 5), engine, tmp_path, 8)
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert all("more than 100 scans" in line["reason"] for line in lines)


@pytest.mark.parametrize("engine", ENGINES)
def test_max_pixels_is_to_the_pixel_and_null_is_no_limit(tmp_path: Path, engine: str) -> None:
    """On a plain image, and on one that Pillow decodes."""
    root = folder(tmp_path / "data", {"x.bmp": encoded(noise(1), "BMP")}, 1)
    for limit, count in ((SIDE * SIDE, 2), (None, 2)):
        with load_limited(root, engine, limit) as loader:
            assert sum(len(batch["label"]) for batch in loader) == count
    with (
        load_limited(root, engine, SIDE * SIDE - 1) as loader,
        pytest.raises(
            gpupipe.SampleError, match=r"64 x 64 pixels, more than data\.max_pixels=4,095"
        ),
    ):
        list(loader)


def load_limited(root: Path, engine: str, limit: int | None) -> gpupipe.Loader:
    data = {"extensions": ["jpg", "bmp"], "max_pixels": limit}
    return loaders.load(root, data=data, ids=False, batch_size=2, **ENGINES[engine])


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "many"])
def test_max_pixels_is_a_whole_number_of_at_least_1(tmp_path: Path, wrong: object) -> None:
    config = {
        "data": {"source": "folder", "root": tmp_path, "max_pixels": wrong},
        "pipeline": ["decode"],
    }
    with pytest.raises(gpupipe.ConfigError, match=r"data\.max_pixels"):
        gpupipe.load(config)


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("engine", ENGINES)
def test_uint16_holds_all_of_16_bits_and_8_bits_times_257(
    tmp_path: Path, engine: str, mode: str
) -> None:
    deep = np.random.default_rng(0).integers(0, 1 << 16, (SIDE, SIDE), np.uint16)
    root = folder(
        tmp_path / "data",
        {
            "deep.png": encoded(Image.fromarray(deep), "PNG"),
            "flat.png": encoded(noise().convert("L"), "PNG"),
        },
        0,
    )
    config = {
        "data": {"source": "folder", "root": root},
        "pipeline": [{"decode": {"mode": mode, "dtype": "uint16"}}],
    }
    with gpupipe.load(
        config, device="cpu", batch_size=2, shuffle=False, **ENGINES[engine]
    ) as loader:
        (batch,) = loader
    assert batch["image"].dtype == torch.uint16
    wanted = [deep, np.asarray(noise().convert("L")).astype(np.uint16) * 257]
    for image, levels in zip(batch["image"].numpy(), wanted, strict=True):
        assert all(np.array_equal(channel, levels) for channel in image)


def damaged_headers() -> list[bytes]:
    """Of one length: a plain JPEG, one of 12 bits, one of another size, and a TIFF of 32 bits."""
    plain = encoded(noise(), "JPEG", quality=100)
    at = plain.index(b"\xff\xc0")
    deep = plain[: at + 4] + b"\x0c" + plain[at + 5 :]
    turned = plain[: at + 5] + struct.pack(">HH", SIDE, SIDE - 16) + plain[at + 9 :]
    tiff = encoded(Image.fromarray(np.zeros((8, 8), np.int32)), "TIFF")
    return [plain, deep, turned, tiff + bytes(len(plain) - len(tiff))]


def test_a_file_that_changes_and_keeps_its_length_is_looked_at_again() -> None:
    """Before, it went to DALI's decoder unseen, which can end the process: see the next test."""
    files = [np.frombuffer(data, np.uint8) for data in damaged_headers()]
    row = np.array([0])
    with ThreadPoolExecutor(1) as threads:
        seen = ImageFiles(1, DecodeOptions(), None, threads)
        for _ in range(2):
            assert seen.make_decodable(row, files[:1])[1].tolist() == [[SIDE, SIDE]]
        assert seen.make_decodable(row, files[2:3])[1].tolist() == [[SIDE, SIDE - 16]]
        for damaged in (files[1:2], files[3:]):
            with pytest.raises(CannotDecodeError):
                seen.make_decodable(row, damaged)
        assert seen.make_decodable(row, files[:1])[1].tolist() == [[SIDE, SIDE]]


def test_a_png_that_changes_is_inflated_again() -> None:
    """Its checksums are right, so that only inflating shows what the change did."""
    right = encoded(noise(), "PNG")
    at = right.index(b"IDAT")
    stream = right[at + 4 : right.index(b"IEND") - 8]
    changed = right[: at - 4] + png_chunk(b"IDAT", stream[:-4] + b"abcd") + right[-12:]
    files = [np.frombuffer(data, np.uint8) for data in (right, changed)]
    row = np.array([0])
    with ThreadPoolExecutor(1) as threads:
        seen = ImageFiles(1, DecodeOptions(), None, threads)
        for _ in range(2):
            assert seen.make_decodable(row, files[:1])[0] == files[:1]
        with pytest.raises(CannotDecodeError, match="PNG"):
            seen.make_decodable(row, files[1:])


CHANGING = """
import sys
from pathlib import Path
import gpupipe

root, damaged = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()
config = {"data": {"source": "folder", "root": root}, "pipeline": ["decode"]}
options = {"engine": "dali", "threads": 8, "batch_size": 64, "quarantine": sys.argv[3]}
with gpupipe.load(config, device="cpu", on_error="skip", max_bad=0.9, **options) as loader:
    list(loader)
    for path in root.glob("*/bad_*"):
        path.write_bytes(damaged)
    for _ in range(8):  # the first of them were read ahead
        list(loader)
    print(len(loader.engine.quarantine))
"""


def test_files_that_change_between_epochs_and_keep_their_length(tmp_path: Path) -> None:
    """DALI's decoder died of them in 4 of 6 runs: SIGSEGV."""
    plain, *_, damaged = damaged_headers()
    root = folder(tmp_path / "data", {f"bad_{n:02}.jpg": plain for n in range(32)}, 32)
    (tmp_path / "damaged").write_bytes(damaged)
    arguments = [str(root), str(tmp_path / "damaged"), str(tmp_path / "bad.jsonl")]
    done = forked_python.run(["-W", "ignore", "-c", CHANGING, *arguments])
    assert (done.returncode, done.stdout) == (0, "32\n"), done.stderr[-2000:]
