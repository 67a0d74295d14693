from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.server.options import parse_options


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"address": "tcp://0.0.0.0:0"}, "give it keys"),
        ({"address": "tcp://*:0"}, "give it keys"),
        ({"address": "tcp://10.0.0.1:1"}, "give it keys"),
        ({"address": "tcp://127.0.0.1.example.org:1"}, "give it keys"),
        ({"address": "tcp://localhost.example.org:1"}, "give it keys"),
        ({"address": "tcp://0.0.0.0:0", "wire": "fuel"}, "knows no keys"),
        ({"keys": Path("secret")}, "needs both"),
        ({"heartbeat_timeout": 9, "session_timeout": 3}, "and below session_timeout"),
        ({"mode": "broadcast", "clients": 2}, "no number of clients"),
        ({"mode": "shared"}, "did you mean 'share'"),
        ({"hwm": 0}, "whole number from 1 to 1,000"),
        ({"hwm": 1.5}, "whole number"),
        ({"compress": "gzip"}, "known: lz4, none, zstd"),
        ({"wire": "fuel", "metrics": 9}, "metrics need"),
    ],
    ids=str,
)
def test_what_would_be_open_or_makes_no_sense_does_not_start(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(gpupipe.ServerError, match=why):
        parse_options(options)
