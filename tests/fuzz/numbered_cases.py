"""The command of the fuzzers that try cases by number, which is the same case always.

# 10 minutes; `make sanitize` runs it with the extensions under AddressSanitizer
python tests/fuzz/fuzz_colors.py --seconds 600
python tests/fuzz/fuzz_colors.py --first 123456 --count 1  # one case again
"""

import argparse
import faulthandler
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

_HANG_SECONDS = 60


@dataclass
class Report:
    """What a run found.

    Attributes:
        cases: Cases that were tried.
        findings: What is wrong, with the number of the case.
    """

    cases: int = 0
    findings: list[str] = field(default_factory=list)


def run_cases(
    description: str | None,
    report: Report,
    try_case: Callable[[int], None],
    finish: Callable[[], None] = lambda: None,
) -> int:
    """Try the cases of a command, and print the report; return the exit status.

    Args:
        description: What --help prints.
        report: What `try_case` and `finish` write into.
        try_case: Tries the case of a number. A case that hangs ends the process.
        finish: Called after the last case.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="(default: %(default)s)")
    parser.add_argument("--count", type=int, help="so many cases, in place of --seconds")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    options = parser.parse_args()
    faulthandler.enable()
    end = time.monotonic() + options.seconds
    while time.monotonic() < end if options.count is None else report.cases < options.count:
        faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
        try_case(options.first + report.cases)
        report.cases += 1
    faulthandler.cancel_dump_traceback_later()
    finish()
    print(json.dumps(asdict(report), indent=1))
    return bool(report.findings)
