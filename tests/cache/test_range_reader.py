"""When obstore reads the parts of files, and when fsspec does; test_stored_fetching reads them."""

from __future__ import annotations

from typing import Any

import pytest

from gpupipe.cache.range_reader import can_read, create_range_reader

pytest.importorskip("obstore")
KEYS = {"key": "k", "secret": "s"}


@pytest.mark.parametrize(
    ("url", "options", "is_read"),
    [
        ("https://host/folder", {}, True),
        ("https://host/folder", {"headers": {"A": "b"}}, False),
        ("https://host/folder?sig=x", {}, False),
        ("s3://bucket/folder", KEYS, True),
        ("s3://bucket/folder", {"anon": True}, True),
        ("s3://bucket", KEYS | {"client_kwargs": {"endpoint_url": "http://127.0.0.1:1"}}, True),
        ("s3://bucket/folder", KEYS | {"requester_pays": True}, False),
        ("s3://bucket/folder", {"profile": "training"}, False),
        ("s3://bucket/folder", {}, False),
        ("file:///folder", {}, False),
        ("gs://bucket/folder", {}, False),
    ],
)
def test_obstore_reads_where_it_has_the_options(
    monkeypatch: pytest.MonkeyPatch, url: str, options: dict[str, Any], is_read: bool
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert (create_range_reader(url, options, 5.0) is not None) == is_read


def test_names_that_clients_quote_differently_are_left_to_fsspec() -> None:
    assert can_read("a/b-1_2=x.tar")
    assert not any(map(can_read, ("a b.tar", "a%20b.tar", "ä.tar", "a+b", "a?b")))
