"""Batches that come in pieces, and whose fault an error is that a client meets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpupipe.client.receiver import Reassembly, wrap_error
from gpupipe.errors import EngineError, ServerError
from gpupipe.protocol import batch_layout, messages
from gpupipe.protocol.batch_layout import MalformedMessage, TensorField


def test_an_error_of_the_server_names_where_it_happened() -> None:
    cause = ValueError("odd")
    error = wrap_error("tcp://127.0.0.1:1 sent a batch that cannot be read", cause)
    assert isinstance(error, ServerError)
    assert str(error) == "tcp://127.0.0.1:1 sent a batch that cannot be read: ValueError('odd')"
    assert error.__cause__ is cause


def test_no_server_is_to_blame_for_a_machine_without_memory() -> None:
    error = wrap_error("tcp://127.0.0.1:1", MemoryError())
    assert isinstance(error, EngineError)
    assert "127.0.0.1" not in str(error)


def test_an_error_of_gpupipe_stays_as_it_is() -> None:
    error = EngineError("the GPU is lost")
    assert wrap_error("tcp://127.0.0.1:1", error) is error


KEY = (0, 1)


def head(*sizes: int, key: tuple[int, int] = KEY) -> messages.BatchHeader:
    fields = [TensorField(f"f{n}", "uint8", (size,), False) for n, size in enumerate(sizes)]
    size = batch_layout.offsets(fields)[1]
    return messages.BatchHeader(key, 0, 4, False, fields, size, None)


def part(offset: int, data: bytes, key: tuple[int, int] = KEY) -> tuple[messages.BatchPart, bytes]:
    return messages.BatchPart(key, offset, len(data), ""), data


@pytest.fixture
def reassembly() -> Iterator[Reassembly]:
    yield Reassembly(2, None)


def test_a_batch_is_whole_when_the_bytes_of_all_fields_are_there(reassembly: Reassembly) -> None:
    """The padding between fields does not come."""
    header = head(3, 2)
    assert reassembly.start(header) is None
    assert reassembly.add_part(*part(0, b"ab")) is None
    assert reassembly.add_part(*part(2, b"c")) is None
    whole = reassembly.add_part(*part(64, b"de"))
    assert whole is not None
    assert whole[0] is header
    content = whole[1].numpy().tobytes()
    assert (content[:3], content[64:66]) == (b"abc", b"de")


def test_an_empty_batch_is_whole_at_once(reassembly: Reassembly) -> None:
    assert reassembly.start(head(0)) is not None


def test_pieces_that_do_not_fit_are_refused(reassembly: Reassembly) -> None:
    for offset, data in ((3, b"xy"), (1, b"again")):
        reassembly.start(head(4))
        assert reassembly.add_part(*part(0, b"ab")) is None
        with pytest.raises(MalformedMessage, match=f"a piece at byte {offset}, past byte 2 of 4"):
            reassembly.add_part(*part(offset, data))


def test_pieces_of_a_batch_that_was_dropped_are_ignored(reassembly: Reassembly) -> None:
    assert reassembly.add_part(*part(0, b"ab")) is None
    reassembly.start(head(2))
    assert reassembly.add_part(*part(0, b"ab", key=(0, 7))) is None
    reassembly.drop_incomplete()
    assert reassembly.add_part(*part(0, b"ab")) is None
