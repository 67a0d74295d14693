"""Samples as they are read: plain JPEGs stay bytes, and other files are opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpupipe.engines.cpu.engine import CpuEngine
from gpupipe.engines.cpu.sample_reader import FieldSamples, SampleReader
from helpers.jpeg_kinds import encode, several_scans
from helpers.loaders import loading

pytest.importorskip("gpupipe._jpeg", reason="the extension is not built")
pytest.importorskip("gpupipe._kernels", reason="the extension is not built")
load = loading(engine="cpu", threads=1, batch_size=8, shuffle=False)


def test_plain_jpegs_stay_bytes_and_all_others_are_opened(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    plain, scans = encode((40, 50), "420"), next(several_scans((30, 20)))[1]
    for n, content in enumerate([plain, scans, b"no image", plain]):
        (tmp_path / "one" / f"{n}.jpg").write_bytes(content)
    errors: dict[int, str] = {}
    with load(tmp_path, ["decode", {"resize": {"size": 20}}]) as loader:
        assert isinstance(loader.engine, CpuEngine)
        starter = loader.engine._starter
        reader = SampleReader(starter.phases[0], starter.decoders, None, False, {})
        fields = reader.read(np.arange(4), lambda n, error: errors.update({n: str(error)}))
        image = fields["image"]
        assert list(errors) == [2]
        assert "not an image in a known format" in errors[2]
        assert image.sizes.tolist() == [[40, 50], [30, 20], [0, 0], [40, 50]]
        first, second, third, last = image.contents
        assert isinstance(first, np.ndarray)
        assert first.tobytes() == plain
        assert isinstance(last, np.ndarray)
        assert third is None
        opened = reader.open("image", first)
        assert reader.open("image", second) is second, "it is open"
    assert opened.size == (40, 50)
    assert opened.header.is_plain


def test_samples_of_parts_are_put_taken_and_selected() -> None:
    samples = FieldSamples.of_unread(5)
    files = [np.full(n, n, np.uint8) for n in range(1, 4)]
    samples.put(range(1, 4), FieldSamples([*files], np.array([[1.0, 2], [3, 4], [5, 6]])))
    assert samples.sizes.tolist() == [[0, 0], [1, 2], [3, 4], [5, 6], [0, 0]]
    assert samples.select(range(5)) is samples
    chosen = samples.select([1, 3])
    assert [content is file for content, file in zip(chosen.contents, files[::2], strict=True)]
    assert chosen.sizes.tolist() == [[1, 2], [5, 6]]
    assert samples.take(range(2, 4))[0] is files[1]
    assert samples.contents[2:4] == [None, None], "their memory can be freed"
    assert samples.contents[1] is files[0]
