"""What the extension gpupipe._png decodes: the pixels of Pillow to the bit, and nothing odd.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.decoders.builtin.libpng import Libpng
from gpupipe.decoders.chain import AUTO, DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import CannotDecodeError, DeclinedError, as_bytes
from gpupipe.decoders.image_header import PlainFormats, read_header, read_plain_sizes
from gpupipe.runtime.installation import find_extension
from helpers.png_kinds import (
    MODES,
    decode_with_pillow,
    join,
    make_chunk,
    make_kinds,
    make_others,
    pack_gray,
    split,
)

extension: Any = find_extension("_png")
if extension is None:
    pytest.skip("the extension is not built, or is off", allow_module_level=True)
SIZES = [(1, 1), (1, 50), (50, 1), (7, 9), (33, 17), (64, 128)]
KINDS, OTHERS = make_kinds(20, 30), make_others(12, 16)


def decode(content: Any, size: tuple[int, int], channels: int) -> Any:
    """The pixels; None if another decoder has to decode the file."""
    pixels = np.full((*size, channels), 77, np.uint8)
    return pixels if extension.decode(content, pixels) else None


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_pixels_are_those_of_pillow(size: tuple[int, int], mode: str) -> None:
    for seed in range(5):
        for kind, content in make_kinds(*size, seed).items():
            expected = decode_with_pillow(content, mode)
            assert expected is not None
            found = decode(content, size, MODES[mode])
            assert found is not None, kind
            assert np.array_equal(found, expected), kind


@pytest.mark.parametrize("kind", KINDS)
def test_all_agree_on_the_header(kind: str) -> None:
    data = as_bytes(KINDS[kind])
    header = Libpng().probe(data)
    assert header is not None
    assert header == read_header(data)
    assert read_plain_sizes([data], PlainFormats.PNG).tolist() == [[20, 30]]
    assert not read_plain_sizes([data], PlainFormats.JPEG).any()


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_are_left_to_other_decoders(kind: str) -> None:
    data = as_bytes(OTHERS[kind])
    assert not extension.is_plain(data)
    assert Libpng().probe(data) is None
    assert not read_plain_sizes([data], PlainFormats.PNG).any()
    assert decode(data, (12, 16), 1) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_cut_or_changed_file_is_declined(kind: str, mode: str) -> None:
    """Each byte but that of a text, which has a checksum too."""
    content = KINDS[kind]
    for at in range(8, len(content), 1 + len(content) // 150):
        assert decode(content[:at], (20, 30), MODES[mode]) is None, at
        changed = content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]
        assert decode(changed, (20, 30), MODES[mode]) is None, at


def test_pixels_of_wrong_checksums_lengths_and_filters_are_declined() -> None:
    head, data, end = split(KINDS["gray"])
    rows = zlib.decompress(data[8:-4])
    packed = zlib.compress(rows)
    wrong = {
        "Adler": packed[:-1] + bytes([packed[-1] ^ 1]),
        "no Adler": packed[:-4],
        "too few": zlib.compress(rows[:-1]),
        "too many": zlib.compress(rows + b"1"),
        "more after the end": packed + b"1",
        "filter": zlib.compress(b"\5" + rows[1:]),
        "empty": b"",
    }
    assert decode(join(head, make_chunk(b"IDAT", packed), end), (20, 30), 1) is not None
    for kind, pixels in wrong.items():
        assert decode(join(head, make_chunk(b"IDAT", pixels), end), (20, 30), 1) is None, kind


def test_a_number_without_an_entry_in_the_palette_is_declined() -> None:
    head, palette, data, end = split(KINDS["palette of 4"])
    shorter = make_chunk(b"PLTE", palette[8:-7])
    assert decode(join(head, palette, data, end), (20, 30), 3) is not None
    assert decode(join(head, shorter, data, end), (20, 30), 3) is None


def test_another_size_is_declined_and_odd_targets_are_refused() -> None:
    content = KINDS["gray"]
    assert decode(content, (20, 31), 1) is None
    assert decode(content, (21, 30), 1) is None
    for shape in ((20, 30), (20, 30, 2), (0, 30, 1)):
        with pytest.raises(ValueError, match="target"):
            extension.decode(content, np.zeros(shape, np.uint8))
    with pytest.raises(ValueError, match="packed"):
        extension.decode(content, np.zeros((20, 60, 1), np.uint8)[:, ::2])
    with pytest.raises(ValueError, match="channels"):
        extension.decode_stage(np.array([[20, 30]]), 2)


def test_rows_of_the_target_may_be_apart() -> None:
    around = np.full((20, 40, 3), 77, np.uint8)
    assert extension.decode(KINDS["RGB"], around[:, :30])
    assert np.array_equal(around[:, :30], decode(KINDS["RGB"], (20, 30), 3))
    assert (around[:, 30:] == 77).all()


@pytest.mark.parametrize("size", [(20, 31), (21, 30), (2**40, 2**40), (-20, -30)], ids=str)
def test_a_stage_takes_memory_for_files_of_its_size_alone(size: tuple[int, int]) -> None:
    kernels: Any = find_extension()
    for content in (KINDS["gray"], KINDS["RGB"]):
        assert kernels.run_stage(extension.decode_stage(np.array([size]), 3), 0, content) is None


def test_limits_of_libpng_and_pillow_decline_a_file_before_it_is_decoded() -> None:
    head, data, end = split(KINDS["gray"])
    for extra, is_plain in ((0, True), (1, False)):
        text = make_chunk(b"tEXt", b"Title\0".ljust((1 << 20) + extra, b"a"))
        assert extension.is_plain(join(head, text, data, end)) == is_plain
        for at in (8, 12):
            side = (1_000_000 + extra).to_bytes(4, "big")
            wide = make_chunk(b"IHDR", head[8:at] + side + head[at + 4 : -4])
            assert extension.is_plain(join(wide, data, end)) == is_plain


def test_odd_values_of_chunks_that_change_no_pixel_are_not_looked_at() -> None:
    head, data, end = split(KINDS["gray"])
    odd = make_chunk(b"gAMA", bytes(4)), make_chunk(b"sRGB", b"\x63"), make_chunk(b"sBIT", b"\x63")
    found = decode(join(head, *odd, data, end), (20, 30), 1)
    assert found is not None
    assert np.array_equal(found, decode_with_pillow(join(head, *odd, data, end), "gray"))


def test_the_chain_decodes_with_it_first_and_leaves_the_rest_to_pillow() -> None:
    chain, rgb = DecoderChain(AUTO), DecodeOptions("rgb")
    assert chain.find_decoder(KINDS["palette of 16"], rgb) == "libpng"
    assert chain.find_decoder(OTHERS["transparent colour"], rgb) == "pillow"
    head, data, end = split(KINDS["gray"])
    more = join(head, make_chunk(b"IDAT", data[8:-4] + b"1"), end)
    assert chain.find_decoder(more, rgb) == "pillow", "Pillow does not look at what follows"
    assert np.array_equal(chain.decode(more, rgb), chain.decode(KINDS["gray"], rgb))
    with pytest.raises(CannotDecodeError):
        chain.decode(join(head, make_chunk(b"IDAT", data[8:-20]), end), rgb)
    with pytest.raises(CannotDecodeError, match="max_pixels=599"):
        DecoderChain(AUTO, 599).open(KINDS["gray"], rgb)
    header = Libpng().probe(as_bytes(KINDS["gray"]))
    assert header is not None
    with pytest.raises(DeclinedError):
        Libpng().decode(header, as_bytes(OTHERS["no end"]), mode="gray", dtype="uint8")


@pytest.mark.parametrize(
    ("decoder", "formats"),
    [
        ("auto", PlainFormats.JPEG | PlainFormats.PNG),
        ("libpng", PlainFormats.JPEG | PlainFormats.PNG),
        ("pillow", PlainFormats.NONE),
    ],
)
def test_plain_pngs_go_to_it_only_if_no_other_decoder_is_asked_first(
    decoder: str, formats: PlainFormats
) -> None:
    pytest.importorskip("gpupipe._jpeg", reason="the extension is not built")
    assert DecoderChain(decoder).plain_formats == formats


def test_16_bits_are_asked_of_a_file_of_8() -> None:
    chain, options = DecoderChain(AUTO), DecodeOptions("gray", dtype="uint16")
    levels = np.arange(200, dtype=np.uint8).reshape(10, 20)
    pixels = chain.decode(pack_gray(levels, 8), options)
    assert np.array_equal(pixels[..., 0], levels.astype(np.uint16) * 257)


def test_memory_is_freed_whatever_the_file() -> None:
    """A decoder that is not freed keeps 40 KiB."""
    head, data, end = split(KINDS["RGB"])
    damaged = join(head, make_chunk(b"IDAT", data[8:-12]), end)
    contents = [KINDS["RGB"], damaged, KINDS["palette of 4"]]
    assert extension.is_plain(damaged), "libpng finds the damage"

    def run(count: int) -> None:
        for n in range(count):
            decode(contents[n % 3], (20, 30), 3)

    run(500)
    before = resident_mib()
    run(20000)
    assert resident_mib() - before < 40


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
