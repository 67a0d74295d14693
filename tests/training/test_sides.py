"""PipeDataModule's training and validation: settings for one side, the same samples on both."""

import shutil
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from nets import Seen
from test_lightning_scripts import CLI, python

import gpupipe
from gpupipe.lightning import PipeDataModule
from test_lightning import pytestmark, trainer

__all__ = ["pytestmark"]  # the warnings of Lightning's that are ignored


@pytest.fixture
def held_out(dots: Path, tmp_path: Path) -> Path:
    """5 of the 37 images, under the same names."""
    for n in range(5):
        (tmp_path / "held-out" / f"{n % 4}").mkdir(parents=True, exist_ok=True)
        shutil.copy(dots / f"{n % 4}" / f"{n:02}.png", tmp_path / "held-out" / f"{n % 4}")
    return tmp_path / "held-out"


def seen(folder: Path, **given: Any) -> tuple[list[int], list[int]]:
    """How many samples an epoch of training and one of validation had."""
    net = Seen()
    data = PipeDataModule(format="dict", **given)
    trainer(folder, max_epochs=1).fit(net, datamodule=data)
    return [sum(map(len, net.trained[0]))], [len(ids) for ids in net.validated]


def listed(file: Path, folder: Path, count: int) -> dict[str, Any]:
    """Settings that read the first images of a folder from a list, all of them with the label 1."""
    names = [p.relative_to(folder) for p in sorted(folder.glob("*/*.png"))[:count]]
    file.write_text("path,label\n" + "".join(f"{name},1\n" for name in names))
    return {"data": {"source": "file_list", "file": file, "path": "path", "root": folder}}


def root(folder: Path) -> dict[str, Any]:
    return {"data": {"root": str(folder)}}


def test_settings_for_one_side(config: Any, tmp_path: Path, dots: Path, held_out: Path) -> None:
    sides = {"train": config, "val": config}
    for changes in (
        {"val_overrides": root(held_out)},
        {"val_overrides": {"data.root": held_out, "batch_size": 2}},
        {**root(held_out), "train_overrides": root(dots)},
    ):
        assert seen(tmp_path, **sides, **changes) == ([37], [5]), changes


def test_one_side_may_read_another_source(config: Any, tmp_path: Path, held_out: Path) -> None:
    val = listed(tmp_path / "list.csv", held_out, 3)
    given = {"data": {"extensions": ["png"]}, "val_overrides": val}
    assert seen(tmp_path, train=config, val=config, **given) == ([37], [3])


@pytest.mark.parametrize("own", [{}, {"shuffle": False, "batch_size": 7}], ids=str)
def test_the_same_samples_on_both_sides(config: Any, tmp_path: Path, own: Any) -> None:
    given = {"train": config, "val": config, "val_overrides": own}
    said = r"same 37 samples.*val_overrides=\{'data'.*allow_same_samples=True"
    with pytest.raises(gpupipe.ConfigError, match=said):
        seen(tmp_path, **given)
    assert seen(tmp_path, **given, allow_same_samples=True) == ([37], [37])


def test_parts_of_one_data_set(config: Any, tmp_path: Path) -> None:
    for name, ids in (("train", range(30)), ("val", range(30, 37)), ("both", range(29, 37))):
        (tmp_path / name).write_text("".join(f"{i}\n" for i in ids))
    given = {"train": config, "val": config, "train_overrides": {"subset": tmp_path / "train"}}
    val, both = ({"subset": tmp_path / name} for name in ("val", "both"))
    assert seen(tmp_path, **given, val_overrides=val) == ([30], [7])
    with pytest.raises(gpupipe.ConfigError, match=r"files without a common id as loader\.subset"):
        seen(tmp_path, **given, val_overrides=both)


def test_one_root_for_both_sides(config: Any, tmp_path: Path, dots: Path, held_out: Path) -> None:
    """What the documentation once suggested."""
    other = config | {"data": {"source": "folder", "root": dots.parent}}
    with pytest.raises(gpupipe.ConfigError, match=f"same 5 samples in 4 classes, of {held_out}"):
        seen(tmp_path, train=config, val=other, **root(held_out))


def test_the_same_files_under_other_labels(config: Any, tmp_path: Path, dots: Path) -> None:
    val = listed(tmp_path / "list.csv", dots, 37)
    with pytest.raises(gpupipe.ConfigError, match="same 37 samples"):
        seen(tmp_path, train=config, val=config, val_overrides=val)


def test_two_folders_of_the_same_names_are_two(config: Any, tmp_path: Path, dots: Path) -> None:
    copy = shutil.copytree(dots, tmp_path / "copy")
    assert seen(tmp_path, train=config, val=config, val_overrides=root(copy)) == ([37], [37])


def test_a_refusal_leaves_no_loader(config: Any) -> None:
    data = PipeDataModule(train=config, val=config)
    train = data.train_dataloader()
    with pytest.raises(gpupipe.ConfigError):
        data.val_dataloader()
    with pytest.raises(gpupipe.GpupipeError, match="closed"):
        iter(train)


def test_a_module_shows_itself_without_new_loaders(config: Any) -> None:
    data = PipeDataModule(train=config, val="configs/val.yaml", engine="dataloader")
    train = data.train_dataloader()
    described = ["  train:   a dict, 37 samples in 4 classes", "  val:     configs/val.yaml"]
    assert str(data).splitlines()[1:3] == described
    assert len(list(train)) == len(train), "which goes on"
    data.teardown("fit")


def test_lightning_cli(config: Any, tmp_path: Path, held_out: Path) -> None:
    """One process trains with each way to write the settings."""
    import yaml

    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    given = ["fit", "--data.train", "small.yaml", "--data.val", "small.yaml"]
    given += ["--data.format", "dict", "--trainer.max_epochs", "1"]
    given += ["--trainer.num_sanity_val_steps", "0"]
    ways = [
        ["--data.val_overrides", f"{{data: {{root: {held_out}}}}}"],
        ["--data.val_overrides.data.root", str(held_out)],
        ["--data.val_overrides", f"{{data.root: {held_out}}}"],
    ]
    code = f"import sys\nfor words in {ways}:\n    sys.argv[1:] = [*{given}, *words]\n"
    code += indent(f"{CLI}print([len(ids) for ids in cli.model.validated])", "    ")
    assert python(code, tmp_path).splitlines().count("[5]") == len(ways)
