"""Fuzz a parser with atheris: python tests/fuzz/fuzz.py PARSER --seconds 600. Ends with status 0
where nothing was found.

Every input must be taken or refused by a DataError: no other exception, no ten seconds of work, no
gigabyte of memory, no span outside the file, no path outside the folder. What TFRecords say is
compared with what protobuf reads, and the members of a tar with what tarfile finds.
"""

import argparse
import faulthandler
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import atheris
from parser_laws import PARSERS  # first: it imports the parsers with atheris's hooks
from parser_seeds import iter_seeds

from gpupipe.dataset import labels
from gpupipe.errors import DataError

_MEMORY = 4 << 30
_SECONDS_AN_INPUT = 10
_SECONDS_A_PROCESS = 60
_SECONDS_TOO_LONG = 45


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("parser", choices=PARSERS)
    options.add_argument("--seconds", type=int, default=60)
    options.add_argument(
        "--corpus",
        type=Path,
        help="folder for inputs that reach new code, kept from run to run (default: a temporary "
        "one)",
    )
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.folder:
        _fuzz(arguments.parser, arguments.seconds, arguments.corpus, arguments.folder)
        return 0
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        return _in_processes(
            arguments.parser, arguments.seconds, arguments.corpus or Path(folder) / "corpus", folder
        )


def _in_processes(parser: str, seconds: int, corpus: Path, folder: str) -> int:
    """Fuzz in one process behind another, as atheris never gives back what it remembers of
    comparisons of arrays: 20 kB an input. Returns the status.
    """
    corpus.mkdir(parents=True, exist_ok=True)
    for n, seed in enumerate(iter_seeds(parser)):
        (corpus / f"seed-{n}").write_bytes(seed)
    counts: Counter[str] = Counter()
    for start in range(0, seconds, _SECONDS_A_PROCESS):
        wanted = min(_SECONDS_A_PROCESS, seconds - start)
        command = [
            sys.executable,
            __file__,
            parser,
            "--seconds",
            str(wanted),
            "--corpus",
            str(corpus),
            "--folder",
            folder,
        ]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"GPUPIPE_CACHE": folder},
        )
        if done.returncode:
            return done.returncode
        counts.update(json.loads(done.stdout.splitlines()[-1]))
    print(json.dumps({"parser": parser, **counts}))
    return 0


def _fuzz(parser: str, seconds: int, corpus: Path, folder: Path) -> None:
    counts, ends = {"taken": 0, "refused": 0}, [time.monotonic() + seconds - 1]

    def one(data: bytes) -> None:
        try:
            PARSERS[parser](data, folder / "input")
            counts["taken"] += 1
        except DataError:
            counts["refused"] += 1
        if ends and ends[0] < time.monotonic():  # libFuzzer ends the process without another word
            ends.clear()
            print(json.dumps(counts), flush=True)

    # a label of ten millions is taken, and takes seconds for the names of as many classes
    labels.MAX_CLASSES = 100_000
    faulthandler.dump_traceback_later(
        seconds + _SECONDS_TOO_LONG, exit=True
    )  # where it hangs, also where libFuzzer's own alarm does not get through
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    libfuzzer = [
        f"-max_total_time={seconds}",
        f"-timeout={_SECONDS_AN_INPUT}",
        "-rss_limit_mb=3000",
        "-max_len=8192",
        f"-artifact_prefix={corpus}/",
    ]
    atheris.Setup([sys.argv[0], *libfuzzer, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
