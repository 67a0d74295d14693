def test_the_line_shows_rates_over_the_last_seconds() -> None:
    from gpupipe.server.metrics import Ticker, format_line

    ticker = Ticker(print, 1.0)
    client = {"name": "here:7", "leased": 3, "hwm": 10, "silent_seconds": 0.4}
    stats = {"clients": [client], "partitions": [{"epoch": 2, "done": 5, "steps": 9}]}
    ticker.measure_rates({"seconds": 0.0, "batches": 0, "bytes": 0})
    ticker.measure_rates({"seconds": 100.0, "batches": 1000, "bytes": 10**9})
    found = ticker.measure_rates({"seconds": 102.0, "batches": 1020, "bytes": 10**9 + 2 * 10**8})
    assert found == (10.0, 100.0)
    assert (
        format_line(stats, found)
        == "epoch 2: 5 of 9; 10.0 batches/s, 100 MB/s, buffers 3 of 10, 1 client (here:7 holds 3)"
    )
    stats["clients"] = [
        client,
        client | {"name": "there:8", "silent_seconds": 4.2},
        client,
        client,
        client,
        client,
    ]
    assert (
        "6 clients (here:7 holds 3, there:8 holds 3, silent for 4 s, here:7 holds 3, "
        "here:7 holds 3, and 2 more)" in format_line(stats, found)
    )
    assert format_line({"clients": [], "partitions": []}, found).startswith(
        "nothing asked for yet; "
    )
