"""Whether a GPU decodes parts of images is asked once a machine, and remembered under what it
depends on.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpupipe import config as configs
from gpupipe.engines.base import Job
from gpupipe.engines.dali.lowering import decodes_regions
from gpupipe.runtime import capability_probe as probes
from gpupipe.runtime.capability_probe import ProbeOutcome, can_decode_regions, probe_once
from gpupipe.runtime.capability_probe_child import NVJPEG
from gpupipe.runtime.installation import installed_version
from helpers.forked_python import Process

PROCESS = """
import os, sys, time
from pathlib import Path
from gpupipe.runtime.capability_probe import ProbeOutcome, probe_once

folder, name = Path(os.environ["GPUPIPE_CACHE"]), sys.argv[1]
lasting, waiters = sys.argv[2] == "lasting", int(sys.argv[3])

def waiting():
    # Processes that wait for the lock, by the kernel's own list:
    # "1: -> FLOCK ADVISORY WRITE pid 00:2a:inode 0 EOF".
    inode = (folder / "region-decode.lock").stat().st_ino
    lines = Path("/proc/locks").read_text().splitlines()
    return sum("->" in line and f":{inode} " in line for line in lines)

def ask():
    with open(folder / "asked", "a") as f:
        f.write(name + "\\n")
    print("asking", flush=True)
    give_up = time.monotonic() + 100
    while waiting() < waiters and time.monotonic() < give_up:
        time.sleep(0.01)
    if waiters and name == "doomed":
        os.kill(os.getpid(), 9)
    if lasting:
        return ProbeOutcome(True, True, True)
    return ProbeOutcome(True, True, False, f"said by {name}", conclusive=False)

answer = probe_once("a GPU", ask)
print(answer.region, answer.reason, answer.is_lasting, sep="|", flush=True)
"""


def start(cache: Path, name: str, lasting: bool = True, waiters: int = 0) -> Process:
    """One that asks, and when it is the one whose turn it is, does not answer before `waiters`
    others wait for it.
    """
    words = ["-c", PROCESS, name, "lasting" if lasting else "passing", str(waiters)]
    return Process(words, env=os.environ | {"GPUPIPE_CACHE": str(cache)}, stdout=subprocess.PIPE)


def said(child: Process) -> str:
    """Its last line."""
    with child:
        assert child.stdout is not None
        out = child.stdout.read()
    return out.splitlines()[-1] if out.strip() else ""


def begun(child: Process) -> Process:
    """Once it is the one that asks."""
    assert child.stdout is not None
    assert child.stdout.readline() == "asking\n"
    return child


def asked(cache: Path) -> list[str]:
    return (cache / "asked").read_text().split()


def test_ranks_that_start_together_ask_once(cache: Path) -> None:
    first = begun(start(cache, "first", waiters=3))
    others = [start(cache, f"other{n}") for n in range(3)]
    assert [said(p) for p in (first, *others)] == ["True||True"] * 4
    assert asked(cache) == ["first"]


def test_the_answer_is_there_for_later_runs(cache: Path) -> None:
    assert said(start(cache, "first")) == "True||True"
    assert said(start(cache, "later")) == "True||True"
    assert asked(cache) == ["first"]
    ((key, entry),) = json.loads((cache / "region-decode.json").read_text()).items()
    assert (key, entry["region"], entry["reason"]) == ("a GPU", True, "")


def test_an_answer_that_does_not_last_serves_those_that_wait_and_no_later_run(cache: Path) -> None:
    first = begun(start(cache, "first", lasting=False, waiters=2))
    others = [start(cache, f"other{n}", lasting=False) for n in range(2)]
    assert [said(p) for p in (first, *others)] == ["False|said by first|False"] * 3
    assert said(start(cache, "later", lasting=False)) == "False|said by later|False"
    assert said(start(cache, "last")) == "True||True"
    assert asked(cache) == ["first", "later", "last"]


def test_who_dies_while_it_asks_keeps_nobody_waiting(cache: Path) -> None:
    doomed = begun(start(cache, "doomed", waiters=1))
    other = start(cache, "other")
    assert said(other) == "True||True"
    assert said(doomed) == ""
    assert doomed.returncode == -9
    assert asked(cache) == ["doomed", "other"]


def test_without_a_cache_folder_it_is_asked_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "file" / "cache"))
    works = ProbeOutcome(True, True, True)
    assert probe_once("a GPU", lambda: works) == works


@pytest.mark.parametrize(
    "text", ["no JSON", "[1]", '{"a GPU": true, "another": {"works": true}}', ""]
)
def test_a_file_that_says_nothing_is_replaced(cache: Path, text: str) -> None:
    """Among them what earlier versions wrote."""
    file = cache / "region-decode.json"
    file.write_text(text)
    crashed = ProbeOutcome(True, True, False, "crashed with SIGSEGV")
    assert probe_once("a GPU", lambda: crashed) == crashed
    assert probe_once("a GPU", lambda: ProbeOutcome(True, True, True)) == crashed
    ((key, entry),) = json.loads(file.read_text()).items()
    assert (key, entry["region"], entry["reason"]) == ("a GPU", False, "crashed with SIGSEGV")


@pytest.mark.parametrize(
    ("outcome", "lasting"),
    [
        (ProbeOutcome(True, True, True), True),
        (ProbeOutcome(True, True, False, "crashed with SIGSEGV"), True),
        (ProbeOutcome(True, True, False, "no answer within 120 s", conclusive=False), False),
        (ProbeOutcome(True, False, False, "RuntimeError: the GPU is busy"), False),
        (ProbeOutcome(False, False, False, "RuntimeError: CUDA is not available"), False),
    ],
)
def test_which_outcomes_are_answers(outcome: ProbeOutcome, lasting: bool) -> None:
    assert outcome.is_lasting is lasting


def test_the_key_has_all_that_the_answer_depends_on() -> None:
    key = probes.describe_versions("NVIDIA H100", "2.4.0")
    codec, nvjpeg = installed_version(*probes.NVIMGCODEC), installed_version(*NVJPEG)
    assert codec is not None
    assert nvjpeg is not None
    assert key.startswith("NVIDIA H100, driver ")
    assert key.endswith(f", DALI 2.4.0, nvImageCodec {codec}, nvJPEG {nvjpeg}")


@pytest.mark.skipif(
    not probes.installed_codec_fault(),
    reason="the nvImageCodec that is installed is not known to be broken",
)
def test_a_codec_that_is_known_to_break_is_not_tried(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "gpupipe"):
        assert can_decode_regions(0) is False
    assert "decodes whole images: nvImageCodec 0.9.0" in caplog.text
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        ("affine", False),
        ("affine_heavy", False),
        ("imagenet_train", True),
        ("imagenet_eval", True),
        (["decode"], False),
        (["decode", {"resize": {"size": [64, 64]}}], False),
        (["decode", {"random_crop": {"size": 64}}], True),
    ],
)
def test_pipelines_that_cut_no_part_out_of_an_image_need_no_probe(
    faces: Path, pipeline: Any, expected: bool
) -> None:
    checked = configs.read({"data": {"source": "folder", "root": faces}, "pipeline": pipeline})
    assert (
        decodes_regions(Job(checked.source.index(), checked.pipeline, checked.loader, 1))
        is expected
    )
