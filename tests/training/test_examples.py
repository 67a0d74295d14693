"""The examples, as a reader runs them."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from PIL import Image

from helpers import forked_python
from helpers.full_product import IS_FULL

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def folder(faces: Path, tmp_path: Path) -> Path:
    """Where an example runs: with a config over 60 faces."""
    content = {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": "affine",
        "loader": {"batch_size": 10, "device": "cpu"},
    }
    (tmp_path / "faces.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def run_example(folder: Path, *words: str) -> str:
    done = forked_python.run(words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_plain_torch(folder: Path) -> None:
    script = str(EXAMPLES / "plain_torch.py")
    said = run_example(folder, script, "faces.yaml", "--epochs", "2", "batch_size=10")
    assert re.search(
        r"epoch 0: loss .*\nepoch 1: loss .*\nwaiting for data: \d+% of step time .* over 12 steps",
        said,
    )
    assert not (folder / "plain_torch.pt").exists()


def test_plain_torch_goes_on_where_it_was_killed(folder: Path) -> None:
    script = folder / "killed.py"
    script.write_text(
        (EXAMPLES / "plain_torch.py")
        .read_text()
        .replace(
            "if step % 10 == 0:", "if step == 3: raise SystemExit(0)\n            if step % 2 == 0:"
        )
    )
    assert "epoch 0" not in run_example(folder, str(script), "faces.yaml")
    said = run_example(folder, str(EXAMPLES / "plain_torch.py"), "faces.yaml")
    assert "resumed in epoch 0" in said
    assert "over 3 steps" in said, "3 of the 6 were done"


def test_resnet_reports_the_accuracy(folder: Path) -> None:
    for n in range(40):
        path = folder / "colours" / ("red" if n % 2 else "blue") / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (200, 20, n) if n % 2 else (n, 20, 200)).save(path)
    content = {
        "data": {"source": "folder", "root": "colours"},
        "pipeline": ["decode", {"to_dtype": {"dtype": "float32", "scale": True}}],
        "loader": {"device": "cpu"},
    }
    (folder / "colours.yaml").write_text(yaml.safe_dump(content))
    words = ["colours.yaml", "--epochs", "2", "batch_size=12"]
    said = run_example(folder, str(EXAMPLES / "resnet.py"), *words)
    assert re.search(r"epoch 0: loss .*\nepoch 1: loss [\d.]+, accuracy [\d.]+% of 4", said)


_FULL = pytest.mark.skipif(not IS_FULL, reason="imports a framework: GPUPIPE_TEST_ALL=1")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("plain_loop", r"epoch 1: loss \d", marks=_FULL),
        pytest.param("references_loop", r"loss \d", marks=_FULL),
        pytest.param("accelerate_loop", r"loss \d", marks=_FULL),
        pytest.param("lightning_loop", "4 steps", marks=_FULL),
        pytest.param("trainer_loop", r"4 steps, loss \d", marks=_FULL),
    ],
)
def test_short_loops(folder: Path, faces: Path, name: str, expected: str) -> None:
    script = EXAMPLES / "loops" / f"{name}.py"
    assert len(script.read_text().splitlines()) < 40
    assert re.search(expected, run_example(folder, str(script), str(faces)))


TRAIN_PY = """
import argparse
import torch
from timm.data import create_dataset, create_loader
from timm.models import create_model

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir")
args = parser.parse_args()
if __name__ == "__main__":
    dataset = create_dataset("", root=args.data_dir)
    loader = create_loader(
        dataset, input_size=(3, 64, 64), batch_size=10, is_training=True, device=torch.device("cpu")
    )
    model = create_model("test_resnet", num_classes=17)
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
    print(type(loader).__module__, len(loader), tuple(images.shape), bool(loss > 0))
"""


def test_a_script_of_timm_gets_the_loaders(folder: Path, faces: Path) -> None:
    pytest.importorskip("timm")
    (folder / "train.py").write_text(TRAIN_PY)
    script = str(EXAMPLES / "timm_train.py")
    said = run_example(folder, script, "train.py", "--data-dir", str(faces))
    assert "gpupipe.timm 6 (10, 3, 64, 64) True" in said
    done = forked_python.run([script, "missing.py"], cwd=folder)
    assert (done.returncode, done.stderr.strip()) == (
        1,
        "usage: python timm_train.py TRAIN_PY [the arguments of train.py]",
    )


@pytest.mark.skipif(
    "GPUPIPE_TIMM_TRAIN" not in os.environ,
    reason="set GPUPIPE_TIMM_TRAIN to a copy of timm's train.py, which its package lacks",
)
def test_train_py_of_timm_for_one_epoch(folder: Path, faces: Path) -> None:
    (folder / "cpu.yaml").write_text("device: cpu\n")
    text = Path(os.environ["GPUPIPE_TIMM_TRAIN"]).read_text()
    text = text.replace("device=torch.device('cuda')", "device=torch.device('cpu')")
    (folder / "train.py").write_text(text)
    words = f"train.py -c cpu.yaml --data-dir {faces} --train-split . --val-split ."
    words += " --model test_resnet --num-classes 17 --img-size 64 -b 10 -j 1 --epochs 1"
    words += " --warmup-epochs 0 --log-interval 1 --output out --mixup 0.2 --reprob 0.2"
    said = run_example(folder, str(EXAMPLES / "timm_train.py"), *words.split())
    assert len(re.findall(r"^Train: 0 \[", said, re.M)) == 6
    assert "*** Best metric" in said


def test_torch_ddp(folder: Path) -> None:
    words = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(EXAMPLES / "torch_ddp.py"),
        "faces.yaml",
        "--epochs",
        "2",
        "batch_size=12",
    ]
    said = run_example(folder, *words)
    assert "epoch 0: 60 of 60 images on 2 ranks" in said
    assert "epoch 1: 60 of 60 images on 2 ranks" in said


def test_lightning_lfw(folder: Path) -> None:
    words = [str(EXAMPLES / "lightning_lfw.py"), "faces.yaml", "--batch_size", "10"]
    assert "waiting for data: " in run_example(folder, *words)
    said = run_example(folder, *words, "--max_epochs", "2", "--resume", "lightning_lfw/last.ckpt")
    assert "over 7 steps" in said, "the last checkpoint is of step 5 of 12"


def test_accelerate_goes_on_where_it_was_stopped(folder: Path) -> None:
    script = str(EXAMPLES / "accelerate_lfw.py")
    words = ["faces.yaml", "--epochs", "2", "--save-every", "2"]
    assert "epoch 0" not in run_example(folder, script, *words, "--stop-after", "3")
    said = run_example(folder, script, *words)
    assert "resumed in epoch 0 after 20 samples" in said
    assert re.search(r"epoch 0: loss .*\nepoch 1: loss .*\nwaiting .* over 10 steps", said)


def test_the_trainer_of_transformers_goes_on_where_it_was_stopped(folder: Path) -> None:
    script = str(EXAMPLES / "hf_trainer.py")
    words = ["faces.yaml", "--epochs", "2", "--save-every", "2"]
    run_example(folder, script, *words, "--stop-after", "3")
    said = run_example(folder, script, *words)
    assert "resumed in epoch 0 after 20 samples" in said
    assert "12 steps, loss " in said
    kept = json.loads((folder / "hf_trainer" / "checkpoint-12" / "loader.json").read_text())
    assert (kept["epoch"], kept["position"]) == (2, 0)
