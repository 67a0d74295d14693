"""Every kind of image file on the CPU engine: see tests/engines/test_corpus.py."""

from typing import Any

import pytest

from corpus_runs import DECODING, Corpus


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus") / "corpus")


def on_cpu(files: Corpus, decoding: str, batch: int, threads: int) -> dict[str, Any]:
    run = files.run("torchvision", decoding, batch, threads)
    options = {"engine": "cpu", "batch_size": batch, "threads": threads}
    return run | {"name": f"cpu, {decoding}, batches of {batch}", "options": options}


@pytest.mark.timeout(900)
def test_every_file_is_decoded_or_refused_as_by_torchvision(files: Corpus) -> None:
    runs = [on_cpu(files, decoding, 1, 1) for decoding in DECODING]
    runs += [on_cpu(files, decoding, 64, 2) for decoding in ("rgb", "gray")]
    reference = [files.run("torchvision", "rgb", 1, 1)]
    results = files.play([*runs, *reference])
    wrong = [
        f"{one['name']}: {line}" for one in runs for line in files.wrong(results[one["name"]], one)
    ]
    assert not wrong, "\n".join(wrong)
    refused = results[reference[0]["name"]]["refused"]
    assert refused
    for one in (runs[0], runs[-2]):
        assert results[one["name"]]["refused"].keys() == refused.keys()
