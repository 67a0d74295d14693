from pathlib import Path


def test_what_a_process_printed_before_it_failed_counts(tmp_path: Path) -> None:
    import harness

    (tmp_path / "some.py").write_text(
        "import sys\nprint('{\"n\": 1}')\nprint('words')\nprint('{\"n\": 2}', "
        "flush=True)\nsys.exit('no memory')\n"
    )
    lines, why = harness.fresh_lines(str(tmp_path / "some.py"), limit=100.0)
    assert lines == [{"n": 1}, {"n": 2}]
    assert "status 1" in why
    assert "no memory" in why
    (tmp_path / "slow.py").write_text(
        "import time\nprint('{\"n\": 1}', flush=True)\ntime.sleep(1000)\n"
    )
    lines, why = harness.fresh_lines(str(tmp_path / "slow.py"), limit=10.0)
    assert lines == [{"n": 1}]
    assert "not done after 10 s" in why
