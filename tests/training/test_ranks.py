"""Real ranks over gloo: every sample once over all of them, equal steps, and a run that is killed
goes on as if it had not been.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import gpupipe
from gpupipe.runtime.ranks import cores
from helpers.forked_python import executable
from helpers.full_product import IS_FULL

SCRIPT = Path(__file__).with_name("rank.py")
COUNT = 37
LINE = dict[str, Any]


@pytest.fixture
def folder(config: dict[str, Any], tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def ranks(
    folder: Path, count: int, *words: str, into: str = "run", code: int = 0
) -> list[list[LINE]]:
    """What each of `count` ranks wrote."""
    out = folder / into
    out.mkdir(exist_ok=True)
    command = [
        executable(),
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(count),
        str(SCRIPT),
        "small.yaml",
        str(out),
        *words,
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (done.returncode == 0) == (code == 0), done.stderr
    return [
        [json.loads(line) for line in (out / f"rank{r}.jsonl").read_text().splitlines()]
        for r in range(count)
    ]


def check_epoch(found: list[list[LINE]], epoch: int, expected: set[int]) -> None:
    """Every expected sample once over all ranks, in equal steps."""
    mine = [[line for line in rank if line["epoch"] == epoch] for rank in found]
    assert len({len(lines) for lines in mine}) == 1
    ids = [i for lines in mine for line in lines for i in line["ids"]]
    assert len(ids) == len(set(ids)) == len(expected)
    assert set(ids) == expected
    assert all(line["ids"] for lines in mine for line in lines)


def check_epochs(found: list[list[LINE]], epochs: int) -> None:
    """All samples once in each of the first epochs, in batches of three and another order."""
    batches = -(-COUNT // (3 * len(found)))
    for epoch in range(epochs):
        check_epoch(found, epoch, set(range(COUNT)))
    assert {line["len"] for rank in found for line in rank} == {batches}
    assert found[0][0]["ids"] != found[0][batches]["ids"], "another order in the next epoch"


@pytest.mark.parametrize(("count", "words"), [(3, ["--engine", "dali"]), (2, ["--fsdp"])], ids=str)
def test_ranks_share_every_epoch_out(folder: Path, count: int, words: list[str]) -> None:
    check_epochs(ranks(folder, count, "--epochs", "3", *words), 3)


def test_a_run_that_is_killed_goes_on_on_any_number_of_ranks(folder: Path) -> None:
    """On three, and in a full run on one, as Lightning's does below."""
    whole = ranks(folder, 2, "--epochs", "2", into="whole")
    check_epochs(whole, 2)
    broken = ranks(folder, 2, "--epochs", "2", "--kill", "5", into="broken", code=1)
    kept = torch.load(folder / "broken" / "kept.pt")
    assert [len(rank) for rank in broken] == [5, 5], "the last checkpoint is one step behind"
    assert broken == [rank[:5] for rank in whole]
    done = {i for rank in broken for line in rank[:4] for i in line["ids"]}
    same = ranks(
        folder, 2, "--epochs", "2", "--resume", str(folder / "broken" / "kept.pt"), into="same"
    )
    assert same == [rank[4:] for rank in whole]
    ours, theirs = torch.load(folder / "same" / "net.pt"), torch.load(folder / "whole" / "net.pt")
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)
    assert kept["loader"]["position"] == len(done)
    for count in (1, 3) if IS_FULL else (3,):
        other = ranks(
            folder,
            count,
            "--epochs",
            "2",
            "--resume",
            str(folder / "broken" / "kept.pt"),
            "--batch-size",
            "4",
            into=f"as{count}",
        )
        check_epoch(other, 0, set(range(COUNT)) - done)
        check_epoch(other, 1, set(range(COUNT)))


def test_lightning_shares_out_and_resumes_on_another_number_of_ranks(folder: Path) -> None:
    def fit(into: str, count: int, *words: str) -> list[list[LINE]]:
        out = folder / into
        out.mkdir()
        command = [
            executable(),
            "-W",
            "ignore",
            str(SCRIPT.with_name("lightning_ranks.py")),
            "small.yaml",
            str(out),
            "--devices",
            str(count),
            *words,
        ]
        path = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        return [
            [json.loads(line) for line in (out / f"rank{r}.jsonl").read_text().splitlines()]
            for r in range(count)
        ]

    whole = fit("two", 2)
    assert {line["threads"] for rank in whole for line in rank} == {max(1, cores() // 2)}, (
        "each rank takes its share of the cores"
    )
    for epoch in range(2):
        check_epoch(whole, epoch, set(range(COUNT)))
    done = {i for rank in whole for line in rank[:4] for i in line["ids"]}
    other = fit("one", 1, "--resume", str(folder / "two" / "step=4.ckpt"), "--batch-size", "4")
    check_epoch(other, 0, set(range(COUNT)) - done)
    check_epoch(other, 1, set(range(COUNT)))


# --- where rank and world size come from


def test_the_environment_of_torchrun_is_heeded(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with gpupipe.load(config) as loader:
        assert (loader.sampler.rank, loader.sampler.world_size) == (1, 3)
        assert loader.config.loader.shard.model_dump() == {"rank": 1, "world_size": 3}
    with gpupipe.load(config, shard={"rank": 0, "world_size": 1}) as loader:
        assert loader.sampler.world_size == 1
    monkeypatch.setenv("WORLD_SIZE", "40")
    with pytest.raises(
        gpupipe.ConfigError,
        match="37 samples cannot give each of 40 ranks one: use fewer ranks, or set last_batch: "
        "pad",
    ):
        gpupipe.load(config, shard="auto")
    with gpupipe.load(config, last_batch="pad") as loader:
        assert len(loader) == 1


@pytest.mark.parametrize(
    ("rank", "world", "said"),
    [
        (
            None,
            "4",
            "WORLD_SIZE=4 is set, but RANK is not set: start with torchrun, or set loader.shard",
        ),
        ("4", "4", "WORLD_SIZE=4 is set, but RANK=4"),
        ("one", "4", "RANK=one in the environment is not a whole number"),
    ],
)
def test_an_environment_that_contradicts_itself_is_refused(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, rank: str | None, world: str, said: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with pytest.raises(gpupipe.DeviceError, match=said):
        gpupipe.load(config)
