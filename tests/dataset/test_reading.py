"""Parts of files, with the extension and without; files and rows that several threads read."""

import errno
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.dataset import reading
from gpupipe.dataset.columns import StringArray
from gpupipe.dataset.reading import (
    Span,
    map_file,
    read_each,
    read_rows_in_parallel,
    read_spans,
    read_spans_and_crcs,
    read_states,
)
from gpupipe.runtime.installation import find_extension
from gpupipe.runtime.progress import ignore_progress
from helpers.image_fields import png
from helpers.jpeg_kinds import encode

CONTENT = bytes(range(256)) * 500


@pytest.fixture(
    params=[
        pytest.param(
            "extension",
            marks=pytest.mark.skipif(find_extension() is None, reason="it is not built"),
        ),
        "python",
    ],
    autouse=True,
)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(reading, "_extension", None)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)
    return str(path)


def test_whole_files_and_parts_of_them(file: str, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    unusual = os.path.join(os.fsencode(tmp_path), b"\xff.bin")
    Path(os.fsdecode(unusual)).write_bytes(b"abc")
    spans = [
        Span(file),
        Span(file, 3, 10),
        Span(file, len(CONTENT), 0),
        Span(file, len(CONTENT) - 1, 1),
        Span(str(tmp_path / "empty")),
        Span(os.fsdecode(unusual)),
    ]
    found = read_spans(spans)
    expected = [CONTENT, CONTENT[3:13], b"", CONTENT[-1:], b"", b"abc"]
    assert [data.tobytes() for data in found] == expected
    assert all(data.dtype == np.uint8 and data.flags.writeable for data in found)
    assert read_spans_and_crcs(spans)[1] == [zlib.crc32(data) for data in expected]
    assert [data.tobytes() for data in read_spans_and_crcs(spans)[0]] == expected
    with pytest.raises(OSError, match="No such file"):
        read_spans_and_crcs([*spans, Span(str(tmp_path / "none"))])
    with pytest.raises(ValueError, match="ends 1 bytes before"):
        read_spans_and_crcs([*spans, Span(file, 1, len(CONTENT))])
    found[0][:] = 0
    assert spans[0].read().tobytes() == CONTENT, "the bytes are a copy"
    assert read_spans([]) == []


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda folder: folder / "missing", FileNotFoundError),
        (lambda folder: folder, IsADirectoryError),
        (lambda folder: folder / "a.bin" / "b", NotADirectoryError),
    ],
)
def test_errors_name_the_file(
    file: str, tmp_path: Path, make: Callable[[Path], Path], error: type[OSError]
) -> None:
    path = str(make(tmp_path))
    with pytest.raises(error) as caught:
        read_spans([Span(file), Span(path)])
    assert caught.value.filename == path
    assert os.strerror(caught.value.errno or 0) in str(caught.value)


def test_a_file_that_ends_too_early_is_told(file: str) -> None:
    with pytest.raises(ValueError, match=r"a\.bin ends 7 bytes before the sample does"):
        Span(file, len(CONTENT) - 3, 10).read()
    with pytest.raises(ValueError, match=r"ends 10 bytes before"):
        Span(file, len(CONTENT) + 100, 10).read()


def test_the_states_of_files_are_those_of_the_system(file: str, tmp_path: Path) -> None:
    unusual = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"\xff.bin"))
    Path(unusual).write_bytes(b"abc")
    os.utime(unusual, ns=(0, 1_234_567_890_123_456_789))
    os.utime(file, ns=(0, -1_500_000_000))  # before 1970
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "broken").symlink_to(tmp_path / "none")
    paths = [file, unusual, str(tmp_path / "link"), str(tmp_path)]
    expected = [(os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
    assert expected[:2] == [(len(CONTENT), -1_500_000_000), (3, 1_234_567_890_123_456_789)]
    assert read_states(paths) == expected
    gone = [str(tmp_path / "missing"), str(tmp_path / "broken"), file + "/b"]
    assert read_states([*gone, file]) == [None, None, None, expected[0]]
    assert read_states([]) == []
    with pytest.raises(ValueError, match="null"):
        read_states([file, "a\0b"])


@pytest.mark.skipif(find_extension() is None, reason="the extension is not built")
@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([("a", -1, None)], ValueError),
        ([("a", 0, -1)], ValueError),
        ([("a", 0)], TypeError),
        ([("a\0b", 0, None)], ValueError),
        ([["a", 0, None]], ValueError),
        ([("a", 0, "b")], TypeError),
        (3, TypeError),
    ],
)
def test_the_extension_refuses_what_is_no_part(parts: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        find_extension().read_files(parts)
    with pytest.raises(TypeError):
        find_extension().stat_files([3])


@pytest.mark.skipif(find_extension() is None, reason="the extension is not built")
@pytest.mark.parametrize("name", ["read_files", "read_files_and_crcs", "stat_files"])
def test_a_list_may_lose_its_items_while_the_extension_parses_them(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(CONTENT)

    class Emptying:
        def __fspath__(self) -> str:
            items.clear()
            return str(file)

    def item(path: Any) -> Any:
        return path if name == "stat_files" else (path, 0, None)

    items = [item(Emptying()), *(item(str(file.with_name(f"gone{n}"))) for n in range(10_000))]
    first, *others = getattr(find_extension(), name)(items)
    assert items == []
    assert first not in (None, errno.ENOENT)
    assert others == [None if name == "stat_files" else errno.ENOENT] * 10_000


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("fifo", "device"):
        for span in (Span(str(tmp_path / name)), Span(str(tmp_path / name), 0, 10)):
            with pytest.raises(OSError, match="not a regular file, but a pipe") as error:
                span.read()
            assert error.value.filename == str(tmp_path / name)
            with pytest.raises(OSError, match="not a regular file, but a pipe"):
                span.read_ends(4, 4)
    with pytest.raises(IsADirectoryError):
        Span(str(tmp_path)).read()


@pytest.mark.parametrize("count", [1, 80])
def test_rows_are_in_their_order(count: int) -> None:
    assert read_rows_in_parallel(lambda row: row * 2, range(count)) == [*range(0, 2 * count, 2)]


def test_results_are_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = [tmp_path / str(n) for n in range(20)]
    assert read_each(files, lambda path: path.name, ignore_progress) == [p.name for p in files]


def test_progress_is_told_after_each_task() -> None:
    told: list[tuple[str, int, int | None]] = []
    read_each(range(10), str, lambda *said: told.append(said), "reading", files_per_task=4)
    assert told == [("reading", 4, 10), ("reading", 8, 10), ("reading", 10, 10)]


def test_files_are_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "x").write_bytes(b"abc")
    assert not len(map_file(tmp_path / "empty"))
    assert map_file(tmp_path / "x").tobytes() == b"abc"


def test_paths_are_put_together_and_read(tmp_path: Path) -> None:
    if reading._extension is None:
        pytest.skip("without the extension, read_spans reads")
    (tmp_path / "a").mkdir()
    for name in ("a/ä b.jpg", "c", "empty"):
        (tmp_path / name).write_bytes(b"" if name == "empty" else name.encode())
    absolute = str(tmp_path / "c")
    names = StringArray.from_strings(["c", "a/ä b.jpg", "empty", absolute])
    folder = os.fsencode(tmp_path) + b"/"
    files = reading.open_files(folder, names.data, names.offsets, np.array([1, 0, 2, 3, 1]))
    assert files is not None
    found = reading.read_all(files, 5)
    assert found is not None
    assert files.take(0) is None, "its bytes are taken"
    with pytest.raises(IndexError, match="no file 5"):
        files.take(5)
    with pytest.raises(IndexError, match="no files 3 to 6"):
        files.read(3, 6, np.empty((5, 2)), -1, 1)
    expected = ["a/ä b.jpg", "c", "", "c", "a/ä b.jpg"]
    assert [content.tobytes().decode() for content in found] == expected


@pytest.mark.parametrize("name", ["absent", "c\0d", "."])
def test_a_path_that_cannot_be_read_is_left_to_read_spans(tmp_path: Path, name: str) -> None:
    if reading._extension is None:
        pytest.skip("without the extension, read_spans reads")
    (tmp_path / "c").write_bytes(b"c")
    names = StringArray.from_strings(["c", name])
    folder = os.fsencode(tmp_path) + b"/"
    files = reading.open_files(folder, names.data, names.offsets, np.array([0, 1]))
    assert files is not None
    assert reading.read_all(files, 2) is None


def test_rows_and_offsets_outside_are_refused(tmp_path: Path) -> None:
    if reading._extension is None:
        pytest.skip("without the extension, read_spans reads")
    data, offsets = np.frombuffer(b"ab", np.uint8), np.array([0, 1, 2])
    for rows in ([2], [-1]):
        with pytest.raises(IndexError, match="there is no row"):
            reading.open_files(b"/", data, offsets, np.array(rows))
    with pytest.raises(ValueError, match="offset"):
        reading.open_files(b"/", data, np.array([0, 3]), np.array([0]))


def test_files_are_read_in_parts_and_plain_jpegs_have_sizes(tmp_path: Path) -> None:
    if reading._extension is None:
        pytest.skip("without the extension, read_spans reads")
    jpeg = encode((40, 50), "420")
    for name, content in {"0": jpeg, "1": b"no image", "3": jpeg[:100]}.items():
        (tmp_path / name).write_bytes(content)
    names = StringArray.from_strings([str(n) for n in range(4)])  # file 2 is missing
    folder = os.fsencode(tmp_path) + b"/"
    files = reading.open_files(folder, names.data, names.offsets, np.array([0, 1, 2, 3, 0]))
    assert files is not None
    sizes = np.full((5, 2), -1.0)
    assert files.read(0, 2, sizes, -1, 1) == 1
    assert sizes.tolist() == [[40, 50], [0, 0], [-1, -1], [-1, -1], [-1, -1]]
    assert files.take(4) is None, "it is not read yet"
    assert files.read(2, 5, sizes, 2000, 1) == 2
    assert sizes[2:].tolist() == [[0, 0], [0, 0], [40, 50]]
    assert files.read(0, 1, sizes, 1999, 1) == 1, "it has more pixels"
    with pytest.raises(ValueError, match="sizes"):
        files.read(0, 1, sizes[:4], -1, 1)
    assert files.take(2) is None
    assert bytes(files.take(3)) == jpeg[:100]
    (tmp_path / "0").write_bytes(jpeg[:50])
    assert files.read(0, 1, sizes, -1, 1) == 0, "its bytes are here already"
    assert bytes(files.take(0)) == jpeg
    assert files.read(0, 1, sizes, -1, 1) == 1, "it is read again"
    assert bytes(files.take(0)) == jpeg[:50]


@pytest.mark.parametrize(
    ("formats", "expected"),
    [
        (0, [[0, 0], [0, 0]]),
        (1, [[40, 50], [0, 0]]),
        (2, [[0, 0], [20, 30]]),
        (3, [[40, 50], [20, 30]]),
    ],
)
def test_sizes_are_those_of_the_formats_asked_for(
    tmp_path: Path, formats: int, expected: list[list[int]]
) -> None:
    if reading._extension is None:
        pytest.skip("without the extension, read_spans reads")
    (tmp_path / "0").write_bytes(encode((40, 50), "420"))
    (tmp_path / "1").write_bytes(png(np.zeros((20, 30), np.uint8)))
    names, sizes = StringArray.from_strings(["0", "1"]), np.full((2, 2), -1.0)
    folder = os.fsencode(tmp_path) + b"/"
    for max_pixels, are_taken in ((-1, True), (599, False)):
        files = reading.open_files(folder, names.data, names.offsets, np.array([0, 1]))
        assert files is not None
        found = expected if are_taken else [[0, 0], [0, 0]]
        assert files.read(0, 2, sizes, max_pixels, formats) == found.count([0, 0])
        assert sizes.tolist() == found
