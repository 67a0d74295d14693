"""The commands on a config with steps on whole batches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import gpupipe
from gpupipe import config as configs
from gpupipe.bench import grid, parity, plan, profile, profile_report, tables, training
from gpupipe.bench.profile import Profile, Stage
from gpupipe.cli.console import console
from gpupipe.config import Config
from gpupipe.errors import ConfigError
from gpupipe.loading.assembly import resolve
from helpers.served import serving

MIXING = [{"one_hot": {"label_smoothing": 0.1}}, {"mixup": {"alpha": 0.4}}]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """24 images of noise, 16x16, in three classes, mixed."""
    root = tmp_path_factory.mktemp("small")
    rng = np.random.default_rng(7)
    for n in range(24):
        (root / f"c{n % 3}").mkdir(exist_ok=True)
        image = Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8))
        image.save(root / f"c{n % 3}" / f"{n:02}.png")
    return {
        "data": {"source": "folder", "root": str(root)},
        "pipeline": ["decode", {"to_dtype": {"dtype": "float32", "scale": True}}],
        "batch": MIXING,
        "loader": {"device": "cpu", "batch_size": 4, "workers": 0},
    }


def read(small: dict[str, Any], **changes: Any) -> Config:
    return configs.read(small, **changes)


def measured(small: dict[str, Any], **changes: Any) -> Profile:
    checked = read(small, **changes)
    index = gpupipe.loader.create_loader(checked).index
    return profile.measure(checked, index, 1, 1, 0.02, lambda what, done, total: None)


def printed(table: Any) -> str:
    out = console()
    with out.capture() as capture:
        out.print(table)
    return capture.get()


@pytest.mark.parametrize("engine", ["dali", "dataloader"])
def test_profile_has_a_row(small: dict[str, Any], engine: str) -> None:
    found = measured(small, engine=engine)
    names = [stage.name for stage in found.stages]
    assert names == ["read", "decode", "to_dtype", "to torch", "batch stage"]
    assert found.is_by_parts
    assert "batch stage" in printed(profile_report.profile_table(found))
    assert "batch one_hot + mixup" in tables.describe_work(found.what)
    without = measured(small, engine=engine, batch=[])
    assert [stage.name for stage in without.stages] == names[:-1]


@pytest.mark.filterwarnings("ignore:.* shares its batches")
def test_profile_of_a_client_times_what_it_mixes(small: dict[str, Any]) -> None:
    with serving(small) as server:
        found = measured(small, engine="remote", server=server.address)
    assert [stage.name for stage in found.stages] == ["receive", "batch stage"]
    assert found.is_received
    assert not found.is_by_parts
    assert profile_report.find_limit(found, 1).resource == "server"


def test_a_costly_batch_stage_gets_advice(small: dict[str, Any]) -> None:
    what = measured(small).what
    times = {"read": 0.1, "decode": 0.2, "to torch": 0.3, "batch stage": 1.0}
    stages = [Stage(name, [s] * 3, [s] * 3, [0.0] * 3) for name, s in times.items()]
    limit = profile_report.find_limit(Profile(what, 1, stages), 1)
    assert limit.resource == "CPU"
    assert any("'batch stage'" in sentence for sentence in limit.sentences)
    assert any("loader.dtype=float16" in sentence for sentence in limit.sentences)


def test_check_prints_the_steps_and_the_batch(small: dict[str, Any]) -> None:
    checked = read(small)
    text = " ".join(printed(tables.batch_table(checked.batch)).split())
    assert "one_hot label_smoothing: 0.1 image, label" in text
    assert "mixup alpha: 0.4 image, label" in text
    facts = list(plan.facts(resolve(checked)))
    assert any("label float32 (B, classes)" in fact for fact in facts)
    assert any("label int64 (B,)" in fact for fact in plan.facts(resolve(read(small, batch=[]))))
    with pytest.raises(ConfigError, match="num_classes is 2"):
        list(plan.facts(resolve(read(small, batch=[{"mixup": {"num_classes": 2}}]))))


def test_parity_compares_unmixed_images(small: dict[str, Any]) -> None:
    """Its batches have one sample, and the first steps deliver bytes, which mixup refuses."""
    checked = read(small)
    found = list(parity.measure(checked, checked.source.index(), ["cpu"], 4, engine="dali"))
    assert [a.step for a in found] == ["decode", "to_dtype"]
    assert all(a.holds for a in found)


def test_a_picture_shows_two_classes_of_a_soft_label(small: dict[str, Any], tmp_path: Path) -> None:
    with gpupipe.load(small) as loader:
        grid.save(loader, next(iter(loader)), tmp_path / "a.png")
        assert grid._name_class(loader, [0.25, 0.75, 0.0]) == "75% c1, 25% c0"
        assert grid._name_class(loader, [0.0, 1.0, 0.0]) == "100% c1"
        assert grid._name_class(loader, 2) == "c2"
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_model_trains_on_soft_labels(small: dict[str, Any]) -> None:
    checked = read(small, batch=[{"mixup": {"num_classes": 5}}], pipeline=_enlarged(small))
    step = training.model("squeezenet1_1")
    found = training.measure(
        checked, checked.source.index(), "test", step, 1, 0.05, lambda *of: None
    )
    assert min(found.fed) > 0


def _enlarged(small: dict[str, Any]) -> list[Any]:
    return ["decode", {"resize": {"size": [64, 64]}}, *small["pipeline"][1:]]


def test_run_check_and_compare(small: dict[str, Any], tmp_path: Path, cli: Any) -> None:
    """From the command line, with overrides."""
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(small))
    run = cli(tmp_path, "run", "c.yaml", "--batches", "8", "--repeats", "1", "--json", "run.json")
    assert run.returncode == 0, run.stderr
    assert "batch one_hot + mixup" in run.stdout + run.stderr
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["what"]["batch_stage"] == ["one_hot", "mixup"]
    check = cli(tmp_path, "check", "c.yaml", "batch=[cutmix: {alpha: 0.5}]")
    assert check.returncode == 0, check.stderr
    assert "cutmix" in check.stdout
    assert "alpha: 0.5" in check.stdout
    wrong = cli(tmp_path, "check", "c.yaml", "batch=[cutmxi]")
    assert wrong.returncode == 2
    assert "did you mean 'cutmix'?" in wrong.stderr
    words = ["--batches", "4", "--repeats", "1", "--cpu-workers", "0", "--json", "both.json"]
    both = cli(tmp_path, "compare", "c.yaml", *words)
    assert both.returncode == 0, both.stderr
    sides = json.loads((tmp_path / "both.json").read_text())
    stages = [o["data"]["batch_stage"] for s in sides["sides"] for o in s["rounds"]]
    assert len(stages) >= 2
    assert set(map(tuple, stages)) == {("one_hot", "mixup")}
