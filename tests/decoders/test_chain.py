"""What is the same for all decoders: their order, limits, blame, depths and EXIF orientations."""

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe.decoders import chain
from gpupipe.decoders.chain import AUTO, DecodeOptions, DecoderChain, list_automatic
from gpupipe.decoders.decoder import CannotDecodeError, DeclinedError, Decoder, Header
from gpupipe.errors import EngineError
from gpupipe.runtime.installation import find_extension
from helpers import plugin
from helpers.image_files import encoded, turned
from helpers.reference import by_id

PLAIN = DecodeOptions()
TURNED = DecodeOptions(apply_exif=True)
PICTURE = Image.linear_gradient("L").resize((30, 20)).convert("RGB")
LEVELS = np.asarray(PICTURE)


class Stub(Decoder):
    """Takes files that begin with its name, and makes what it was told to."""

    def __init__(self, name: str, result: Any, header: Header | None = None) -> None:
        self.name, self.result, self.asked = name, result, 0
        self.header = header or Header(name, *LEVELS.shape[:2], is_plain=True)

    def probe(self, data: Any) -> Header | None:
        return self.header if bytes(data).startswith(self.name[0].encode()) else None

    def decode(self, header: Header, data: Any, **options: Any) -> Any:
        self.asked += 1
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(*decoders: Stub, **options: Any) -> DecoderChain:
        by_name = {decoder.name: decoder for decoder in decoders}
        monkeypatch.setattr(chain, "list_automatic", lambda: list(by_name))
        monkeypatch.setattr(chain, "_create", by_name.__getitem__)
        return DecoderChain(**options)

    return use


def test_auto_asks_the_decoders_in_the_stated_order() -> None:
    order = ["jpeg_window", "libpng", "simplejpeg", "torchcodec", "torchvision"]
    order += ["pillow", "imagecodecs"]
    assert list_automatic() == order
    assert DecoderChain("torchvision").names == ("torchvision", *order[:4], *order[5:])
    assert DecoderChain("pil").names[0] == "pillow"


def test_a_decoder_that_declines_leaves_the_file_to_the_next(stubs: Any) -> None:
    first, second = Stub("a1", DeclinedError("odd")), Stub("a2", LEVELS)
    decoders = stubs(first, Stub("b", None), second)
    assert np.array_equal(decoders.decode(b"abc", PLAIN), LEVELS)
    assert decoders.find_decoder(b"abc", PLAIN) == "a2"
    assert (first.asked, second.asked) == (2, 2)
    with pytest.raises(CannotDecodeError, match="odd"):
        stubs(first).decode(b"abc", PLAIN)


def test_any_other_error_blames_the_file_or_the_machine(stubs: Any) -> None:
    unasked = Stub("a2", LEVELS)
    with pytest.raises(CannotDecodeError, match="bits are missing"):
        stubs(Stub("a1", ValueError("bits are missing")), unasked).decode(b"abc", PLAIN)
    with pytest.raises(MemoryError):
        stubs(Stub("a1", MemoryError()), unasked).decode(b"abc", PLAIN)
    assert not unasked.asked


@pytest.mark.skipif(find_extension("_jpeg") is None, reason="the extension is not built")
def test_sizes_of_several_files_are_those_of_opened_images() -> None:
    files = [np.frombuffer(encoded(PICTURE, form), np.uint8).copy() for form in ("JPEG", "BMP")]
    chain = DecoderChain(AUTO, max_pixels=600)
    assert chain.open(files[0], PLAIN).size == (20, 30)
    assert chain.read_plain_sizes(files).tolist() == [[20, 30], [0, 0]]
    assert not DecoderChain(AUTO, max_pixels=599).read_plain_sizes(files).any()
    assert not DecoderChain("pillow").read_plain_sizes(files).any()


def test_max_pixels_refuses_an_image_before_it_is_decoded(stubs: Any) -> None:
    tiled = Stub("a", LEVELS, Header("a", 1, 1, tile=(30, 30)))
    for decoder in (Stub("a", LEVELS), tiled):
        with pytest.raises(CannotDecodeError, match=r"more than data\.max_pixels=599"):
            stubs(decoder, max_pixels=599).decode(b"abc", PLAIN)
        assert not decoder.asked
    assert stubs(Stub("a", LEVELS), max_pixels=600).decode(b"abc", PLAIN) is not None


@pytest.mark.parametrize(
    ("stored", "dtype", "expected"),
    [("uint8", "uint16", 257 * 200), ("uint16", "uint8", 2), ("uint8", "uint8", 200)],
)
def test_depths_are_converted(stubs: Any, stored: str, dtype: str, expected: int) -> None:
    value = 200 if stored == "uint8" else 2 * 256 + 255
    decoders = stubs(Stub("a", np.full(LEVELS.shape, value, stored)))
    pixels = decoders.decode(b"a", DecodeOptions("rgb", False, dtype))
    assert (pixels.dtype, set(pixels.flat)) == (dtype, {expected})


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("name", [AUTO, "torchvision", "pil"])
def test_exif_orientations_are_applied_on_request(form: str, orientation: int, name: str) -> None:
    whole = {"quality": 100, "subsampling": 0} if form == "JPEG" else {"lossless": True}
    data = encoded(PICTURE, form, exif=turned(orientation), **whole)
    plain = DecoderChain("pil").decode(encoded(PICTURE, form, **whole), PLAIN)
    assert np.array_equal(DecoderChain(name).decode(data, PLAIN), plain)
    methods = [None, 0, 3, 1, 5, 4, 6, 2]
    method = methods[orientation - 1]
    upright = Image.fromarray(plain)
    upright = upright if method is None else upright.transpose(Image.Transpose(method))
    pixels = DecoderChain(name).decode(data, DecodeOptions(apply_exif=True))
    assert np.array_equal(pixels, np.asarray(upright))


class Windowed(Stub):
    """Has the right pixels inside of the window alone."""

    def decode(self, header: Header, data: Any, *, window: Any = None, **options: Any) -> Any:
        if window is None:
            return self.result
        top, left, height, width = window
        needed = np.s_[top : top + height, left : left + width]
        assert self.result[needed].shape[:2] == (height, width), "inside of the image"
        pixels = 255 - self.result
        pixels[needed] = self.result[needed]
        return pixels


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_window_of_a_turned_image_has_the_pixels_of_the_whole(
    stubs: Any, orientation: int
) -> None:
    rng = np.random.default_rng(orientation)
    stored = rng.integers(0, 256, (7, 11, 3), np.uint8)
    header = Header("a", 7, 11, is_plain=True, orientation=orientation)
    image = stubs(Windowed("a", stored, header)).open(b"abc", TURNED)
    whole = image.decode(TURNED)
    rows, columns = whole.shape[:2]
    assert image.size == ((11, 7) if orientation >= 5 else (7, 11)) == (rows, columns)
    for top, left in np.ndindex(rows, columns):
        for height, width in ((1, 1), (rows - top, 1), (1, columns - left), (rows - top, 3)):
            window = [top, left, height, min(width, columns - left)]
            needed = np.s_[top : top + height, left : left + window[3]]
            pixels = image.decode(TURNED, window)
            assert pixels.shape == whole.shape and pixels.flags.writeable
            assert np.array_equal(pixels[needed], whole[needed]), window


@pytest.mark.skipif(find_extension("_jpeg") is None, reason="the extension is not built, or is off")
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_window_of_a_turned_jpeg_is_decoded_alone(orientation: int) -> None:
    noise = np.random.default_rng(3).integers(0, 256, (9, 13, 3), np.uint8)
    picture = Image.fromarray(noise).resize((130, 90))
    data = np.frombuffer(encoded(picture, "JPEG", exif=turned(orientation)), np.uint8)
    image = DecoderChain("jpeg_window").open(data, TURNED)
    whole = np.asarray(DecoderChain("torchvision").decode(data, TURNED))
    for top, left, height, width in ((0, 0, 8, 9), (30, 50, 20, 31), (81, 60, 9, 30)):
        needed = np.s_[top : top + height, left : left + width]
        pixels = image.decode(TURNED, [top, left, height, width])
        assert np.array_equal(pixels[needed], whole[needed])
    assert type(image.decoder).__name__ == "JpegWindow"


def test_a_shape_that_is_not_the_headers_blames_no_file(stubs: Any) -> None:
    with pytest.raises(EngineError, match="Stub made an array of the shape"):
        stubs(Stub("a", LEVELS[1:])).decode(b"a", PLAIN)


def test_a_file_that_no_decoder_takes_says_why() -> None:
    decoders = DecoderChain()
    for data, words in ((b"", "the file is empty"), (b"hello", "not an image in a known format")):
        with pytest.raises(CannotDecodeError, match=words):
            decoders.decode(data, PLAIN)


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "imagecodecs", None)
    chain._create.cache_clear()
    try:
        with pytest.raises(CannotDecodeError, match=r"JPEG XL: the decoder imagecodecs .*jpegxl"):
            DecoderChain().decode(b"\xff\n" + bytes(30), PLAIN)
        with pytest.raises(EngineError, match=r"loader\.decoder: .*pip install .*jpegxl"):
            DecoderChain("imagecodecs")
    finally:
        chain._create.cache_clear()


def test_a_chain_goes_to_another_process() -> None:
    decoders = pickle.loads(pickle.dumps(DecoderChain("pil", 600)))
    assert decoders.decode(encoded(PICTURE, "PNG"), PLAIN).shape == LEVELS.shape


@pytest.mark.parametrize("engine", ["cpu", "dataloader"])
def test_a_name_with_an_error_is_refused_with_the_nearest_one(faces: Path, engine: str) -> None:
    with pytest.raises(gpupipe.ConfigError, match="did you mean 'simplejpeg'"):
        load(faces, engine, "simplejpg")


def load(root: Path, engine: str, decoder: str) -> dict[int, torch.Tensor]:
    data = {"source": "folder", "root": root}
    with gpupipe.load(
        {"data": data, "pipeline": ["decode"]}, engine=engine, decoder=decoder, device="cpu",
        batch_size=1, workers=0, ids=True,
    ) as loader:  # fmt: skip
        return by_id(loader)


@pytest.mark.parametrize("decoder", ["simplejpeg", "torchvision", "jpeg_window"])
def test_each_engine_takes_the_decoder_that_is_named(faces: Path, decoder: str) -> None:
    if decoder == "jpeg_window" and find_extension("_jpeg") is None:
        pytest.skip("the extension is off, or not built")
    expected = load(faces, "dataloader", "auto")
    for engine in ("cpu", "dataloader"):
        found = load(faces, engine, decoder)
        assert all(torch.equal(found[id], expected[id]) for id in expected)


# --- a decoder of another package is one file

FARBFELD = """
import struct

import numpy as np

from gpupipe.decoders.decoder import Decoder, Header


class Farbfeld(Decoder):
    '''https://tools.suckless.org/farbfeld: RGBA of 16 bits, big endian.'''

    def probe(self, data):
        if bytes(data[:8]) != b"farbfeld":
            return None
        width, height = struct.unpack_from(">II", data, 8)
        return Header("farbfeld", height, width, channels=4, depth=16)

    def decode(self, header, data, *, mode, dtype, window=None, out=None):
        pixels = np.frombuffer(data, ">u2", header.height * header.width * 4, 16)
        pixels = pixels.reshape(header.height, header.width, 4).astype(np.uint16)
        return pixels[..., :3] if mode == "rgb" else pixels[..., 1:2]
"""


@pytest.fixture
def farbfeld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an image, of which only an installed package knows the format."""
    monkeypatch.syspath_prepend(tmp_path)
    plugin.install(tmp_path, "farbfeld_package", FARBFELD, decoder_farbfeld="Farbfeld")
    chain._create.cache_clear()
    (tmp_path / "data" / "one").mkdir(parents=True)
    alpha = np.full((*LEVELS.shape[:2], 1), 255, np.uint8)
    levels = np.concatenate([LEVELS, alpha], -1).astype(">u2") * np.uint16(257)
    height, width = LEVELS.shape[:2]
    content = b"farbfeld" + struct.pack(">II", width, height) + levels.astype(">u2").tobytes()
    (tmp_path / "data" / "one" / "picture.png").write_bytes(content)
    return tmp_path / "data"


@pytest.mark.parametrize("engine", ["cpu", "dataloader", "dali"])
def test_adding_a_decoder_is_one_file(farbfeld: Path, engine: str) -> None:
    """auto asks it after the built-in decoders, and applies its rules to it."""
    found = load(farbfeld, engine, "auto")
    assert torch.equal(found[0], torch.from_numpy(LEVELS.copy()).permute(2, 0, 1))
    assert list_automatic()[-1] == "farbfeld"
    config = {"data": {"source": "folder", "root": farbfeld, "max_pixels": 599}}
    config["pipeline"] = ["decode"]
    with (
        gpupipe.load(config, engine=engine, device="cpu") as loader,
        pytest.raises(gpupipe.SampleError, match=r"picture\.png: .*30 x 20 pixels, more than"),
    ):
        list(loader)


@pytest.mark.parametrize("engine", ["cpu", "dataloader"])
def test_a_decoder_of_another_package_is_taken_by_its_name(farbfeld: Path, engine: str) -> None:
    assert DecoderChain("farbfeld").names[0] == "farbfeld"
    assert load(farbfeld, engine, "farbfeld").keys() == {0}
