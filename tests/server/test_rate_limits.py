"""How many requests with long answers a connection may send."""

from __future__ import annotations

from gpupipe.server.rate_limits import RateLimits, TokenBucket


def test_a_bucket_refills_up_to_its_burst() -> None:
    bucket = TokenBucket(burst=2, rate=4, last_refill=0.0)
    assert [bucket.take(1, 0.0) for _ in range(3)] == [True, True, False]
    assert bucket.take(1, 0.25)
    assert not bucket.take(1, 0.3)
    assert [bucket.take(1, 100.0) for _ in range(3)] == [True, True, False]


def test_who_asks_for_too_much_gets_what_is_left_away() -> None:
    bucket = TokenBucket(burst=10, rate=1, last_refill=0.0)
    assert not bucket.take(11, 0.0)
    assert not bucket.take(1, 0.0)


def test_each_connection_has_a_limit_of_its_own() -> None:
    limits = RateLimits()
    assert [limits.allow(b"a", 0.0) for _ in range(21)] == [True] * 20 + [False]
    assert limits.allow(b"b", 0.0)
    assert limits.allow(b"a", 0.25)


def test_connections_that_are_forgotten_are_those_that_asked_least_recently() -> None:
    limits = RateLimits()
    for _ in range(20):
        limits.allow(b"first", 0.0)
    for number in range(9_999):
        limits.allow(number.to_bytes(4, "little"), 0.0)
    assert not limits.allow(b"first", 0.0), "10,000 are remembered"
    for number in range(9_999, 20_000):
        limits.allow(number.to_bytes(4, "little"), 0.0)
    assert limits.allow(b"first", 0.0)
