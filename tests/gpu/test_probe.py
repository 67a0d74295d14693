"""What the probe says of a GPU."""

from __future__ import annotations

from gpupipe.probe import jpeg_engines, probe


def test_a_gpu_answers() -> None:
    outcome = probe(0)
    assert outcome.pipeline and outcome.decode
    assert outcome.region or outcome.reason
    engines = jpeg_engines(0)
    assert engines.number is not None, engines.reason
    assert (engines.number > 0) == (engines.cores > 0)
