"""Samples of a field: put in parts, taken, and selected."""

import numpy as np

from gpupipe.engines.cpu.field_samples import FieldSamples


def test_samples_of_parts_are_put_taken_and_selected() -> None:
    samples = FieldSamples.of_unread(5)
    files = [np.full(n, n, np.uint8) for n in range(1, 4)]
    samples.put(range(1, 4), FieldSamples([*files], np.array([[1.0, 2], [3, 4], [5, 6]])))
    assert samples.sizes.tolist() == [[0, 0], [1, 2], [3, 4], [5, 6], [0, 0]]
    assert samples.select(range(5)) is samples
    chosen = samples.select([1, 3])
    assert [content is file for content, file in zip(chosen.contents, files[::2], strict=True)]
    assert chosen.sizes.tolist() == [[1, 2], [5, 6]]
    assert samples.take(2) is files[1]
    assert samples.contents[2] is None, "its memory can be freed"
    assert samples.contents[1] is files[0]
