"""Every kind of image file on every engine: the pixels that were written, or an error that names
it.

python tests/corpus_runs.py --all       # the same with every batch size, threads and decoding
"""

from pathlib import Path
from typing import Any

import pytest

from corpus_runs import ENGINES, Corpus
from helpers import corpus_table


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus") / "corpus")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_file_alone_among_good_ones_and_together(files: Corpus, engine: str) -> None:
    runs = files.suite(engine)
    results = files.play(runs)
    wrong = [
        f"{one['name']}: {line}" for one in runs for line in files.wrong(results[one["name"]], one)
    ]
    assert not wrong, "\n".join(wrong)
    outcomes = files.outcomes(engine, results[runs[0]["name"]])
    written = corpus_table.column(engine)
    assert written == corpus_table.decoders(outcomes), "tests/corpus_runs.py --write"
    assert "\n".join(corpus_table.refusals(outcomes)) in corpus_table.written()
    one_of_each = {reason: file for file, reason in results[runs[0]["name"]]["refused"].items()}
    assert one_of_each
    check_raising(files, engine, one_of_each)


def check_raising(files: Corpus, engine: str, refused: dict[str, str]) -> None:
    """Under on_error: raise it is a SampleError with the path of the file and the same reason."""
    one = files.raising(engine, refused.values())
    raised: dict[str, Any] = files.play([one])[one["name"]]["raised"]
    for reason, file in refused.items():
        assert str(Path("files") / file) in raised[file]
        assert reason in raised[file]
