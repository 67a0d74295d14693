"""What the probe of gpupipe says of the decoders, and how long it takes to say it.

A version of nvImageCodec that gpupipe does not trust with parts of images is tried all the same,
for information: batches of 1, 128 and 132 images on 16 threads, with three shares of the hardware
decoder.
"""

import time
from dataclasses import asdict
from typing import Any

import part

from gpupipe.runtime import capability_probe


def main() -> None:
    arguments = part.options(__doc__).parse_args()
    part.prepare(arguments)
    result = part.Part("probe", arguments)
    number = None if arguments.device == "cpu" else 0
    outcome, found = _probed(number)
    result.figures(probe=found)
    result.check("DALI computes there", outcome.pipeline, outcome.reason)
    result.check("DALI decodes whole images there", outcome.decode, outcome.reason)
    region = f"parts of images: {'work' if outcome.region else outcome.reason}"
    result.headline(region)
    if number is not None:
        engines = capability_probe.jpeg_engines(number)
        result.figures(jpeg_engines=asdict(engines))
        result.check("nvJPEG counts its engines", engines.number is not None, engines.reason)
        if capability_probe.installed_codec_fault():
            tried, found = _probed(number, even_if_broken=True)
            result.figures(probe_although_broken=found)
            result.headline(f"{region}; tried: {'they work' if tried.region else tried.reason}")
    result.finish()


def _probed(
    number: int | None, **options: bool
) -> tuple[capability_probe.ProbeOutcome, dict[str, Any]]:
    """The answer, and it as plain JSON with the seconds that it took."""
    started = time.monotonic()
    outcome = capability_probe.probe(number, **options)
    return outcome, asdict(outcome) | {"seconds": round(time.monotonic() - started, 1)}


if __name__ == "__main__":
    main()
