"""gpupipe profile --trace: what a trace of training holds, with each engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpupipe import config as configs
from gpupipe.bench import training
from gpupipe.bench.training import record_training
from helpers import forked_python


def record(faces: Path, engine: str, steps: int = 3) -> list[dict[str, Any]]:
    content = {"data": {"source": "folder", "root": faces}, "pipeline": "affine"}
    config = configs.read(content, batch_size=20, device="cpu", engine=engine, workers=1)
    trace = record_training(config, config.source.index(), training.pause(1), 0.0)
    assert trace["otherData"]["steps"] == steps
    assert json.loads(json.dumps(trace)) == trace, "plain JSON"
    assert all({"name", "ph", "pid", "tid"} <= event.keys() for event in trace["traceEvents"])
    return [event for event in trace["traceEvents"] if event["ph"] != "M"]


def by_name(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    names: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        names.setdefault(event["name"], []).append(event)
    return names


@pytest.mark.parametrize("engine", ["dali", "cpu", "dataloader"])
def test_the_trainer_steps_and_waits(faces: Path, engine: str) -> None:
    names = by_name(record(faces, engine))
    assert len(names["step"]) == len(names["wait"]) == 3
    assert all(event["dur"] >= 1000 for event in names["step"]), "a step takes a millisecond"
    for wait, step in zip(names["wait"], names["step"], strict=True):
        assert wait["ts"] + wait["dur"] <= step["ts"], "a step waits for its batch"
        assert wait["tid"] == step["tid"]
    inside = [(e["ts"], e["ts"] + e["dur"]) for e in names["wait"]]
    assert names["hand-over"]
    for event in names["hand-over"]:
        assert any(a <= event["ts"] and event["ts"] + event["dur"] <= b + 1 for a, b in inside)


def test_engine_cpu_shows_each_sample_and_each_kernel(faces: Path) -> None:
    names = by_name(record(faces, "cpu"))
    kernels = {n: e[0]["args"]["steps"] for n, e in names.items() if "steps" in e[0]["args"]}
    (affine,) = [name for name, steps in kernels.items() if "random_affine" in steps]
    assert len(names[affine]) == len(names["sample"])
    assert names["decode"][0]["args"]["steps"] == "decode"
    rows = {(e["args"]["batch"], e["args"]["row"]) for e in names["sample"]}
    assert len(rows) == len(names["sample"]), "each sample once"
    keys = {key for key, _ in rows}
    assert keys <= {f"{epoch}:{end}" for epoch in range(9) for end in (20, 40, 60)}
    ends = [e["id"] for e in names["batch in flight"] if e["ph"] == "e"]
    assert len(set(ends)) == len(ends)


def test_dali_shows_its_reader_and_its_graph(faces: Path) -> None:
    names = by_name(record(faces, "dali"))
    assert {"read", "compute parameters", "DALI graph", "batch in flight"} <= names.keys()


def test_the_command_writes_a_trace(faces: Path, tmp_path: Path) -> None:
    words = ["profile", "lfw", f"data.root={faces}", "device=cpu", "engine=cpu", "batch_size=20"]
    options = ["--step-ms", "1", "--repeats", "1", "--repeat-seconds", "0.01", "--trace", "t.json"]
    done = forked_python.run(["-m", "gpupipe", *words, *options], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "A trace of 3 steps is in t.json: open it at" in done.stdout
    trace = json.loads((tmp_path / "t.json").read_text())
    assert trace["otherData"]["engine"] == "cpu"
    assert trace["displayTimeUnit"] == "ms"


def test_utilisation_is_the_rate_beside_that_on_kept_batches() -> None:
    measured = training.Training("a step", fed=[80.0, 80.0], replayed=[100.0, 100.0])
    assert measured.accelerator_utilisation == pytest.approx(0.8)
    assert measured.waiting.value == pytest.approx(0.2)
    faster = training.Training("a step", fed=[101.0], replayed=[100.0])
    assert faster.accelerator_utilisation == 1
