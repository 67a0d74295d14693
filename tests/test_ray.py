"""gpupipe.ray.dataset(): the samples of load() as a Dataset of Ray Data, made by its actors."""

import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from pyarrow import parquet

import gpupipe
import gpupipe.ray
from gpupipe.errors import ConfigError, EngineError
from gpupipe.runtime.installation import install_command
from helpers import forked_python
from helpers.ray_cluster import shared_cluster

# Ray Data warns of its own settings, and leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
COUNT = 30


@pytest.fixture
def dots(tmp_path: Path) -> Path:
    """30 images of 4x3 pixels in 3 classes."""
    for n in range(COUNT):
        (tmp_path / "dots" / f"{n % 3}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), (n, 2 * n, 3 * n)).save(
            tmp_path / "dots" / f"{n % 3}" / f"{n:02}.png"
        )
    return tmp_path / "dots"


def config(root: Path, **loader: Any) -> dict[str, Any]:
    return {
        "data": {"source": "folder", "root": str(root)},
        "pipeline": ["decode", "random_horizontal_flip", {"random_crop": {"size": 3}}],
        "loader": {"engine": "cpu", "batch_size": 4, "device": "cpu", "ray": {"cpus": 1}} | loader,
    }


@pytest.fixture(scope="module")
def data() -> Any:
    """ray.data, connected to the cluster of all tests; it keeps the order."""
    from ray import data

    shared_cluster()
    context = data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    return data


def test_a_dataset_has_the_samples_of_load_with_their_draws_and_order(
    data: Any, dots: Path
) -> None:
    """Repeats of a sample have draws of their own."""
    changes = {"repeats": 2, "epoch_size": "all", "batch_size": 7}
    rows = gpupipe.ray.dataset(config(dots), epoch=1, **changes).take_all()
    with gpupipe.load(config(dots), ids=True, **changes) as loader:
        loader.sampler.set_epoch(1)
        batches = list(loader)
    assert len(rows) == 2 * COUNT
    assert set(rows[0]) == {"image", "label", "id"}
    for name in rows[0]:
        expected = np.concatenate([batch[name].numpy() for batch in batches])
        assert np.array_equal(np.stack([row[name] for row in rows]), expected)


def test_a_dataset_is_lazy_and_names_a_broken_file(data: Any, dots: Path) -> None:
    broken = dots / "1" / "04.png"
    samples = gpupipe.ray.dataset(config(dots))
    broken.write_bytes(b"no image")
    with pytest.raises(Exception, match=rf"{broken}: .*on node \S+"):
        samples.take_all()


def test_more_cpus_than_a_node_has(data: Any, dots: Path) -> None:
    with pytest.raises(EngineError, match=r"loader.ray.cpus=64.*1 CPU:"):
        gpupipe.ray.dataset(config(dots), ray={"cpus": 64})


def test_ray_data_writes_the_samples_that_are_not_skipped(
    data: Any, dots: Path, tmp_path: Path
) -> None:
    (dots / "1" / "04.png").write_bytes(b"no image")
    skipping = {"on_error": "skip", "max_bad": 0.1}
    samples = gpupipe.ray.dataset(config(dots), shuffle=False, **skipping).materialize()
    samples.write_parquet(str(tmp_path / "parquet"))
    rows = parquet.read_table(tmp_path / "parquet", columns=["id", "label"])
    kept = [n for n in range(COUNT) if n != 11]  # the second file of the folder "1"
    assert sorted(rows["id"].to_pylist()) == kept
    assert sorted(rows["label"].to_pylist()) == [n // 10 for n in kept]

    def to_files(batch: dict[str, Any]) -> dict[str, Any]:
        keys = np.array([f"{id:06}" for id in batch["id"]])
        return {"__key__": keys, "npy": batch["image"], "cls": batch["label"]}

    samples.map_batches(to_files).write_webdataset(str(tmp_path / "tar"))
    names = []
    for path in (tmp_path / "tar").glob("*.tar"):
        with tarfile.open(path) as shard:
            names += shard.getnames()
    ends = ("cls", "npy")
    assert sorted(names) == [f"{n:06}.{end}" for n in kept for end in ends]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": ["one_hot"]}, "one_hot.*map_batches"),
        ({"dtype": "bfloat16"}, "bfloat16.*float16"),
        ({"engine": "remote", "server": "tcp://127.0.0.1:1"}, "remote.*engine=auto"),
    ],
)
def test_what_a_dataset_cannot_have(dots: Path, changes: dict[str, Any], message: str) -> None:
    batch = {"batch": changes.pop("batch")} if "batch" in changes else {}
    with pytest.raises(ConfigError, match=message):
        gpupipe.ray.dataset(config(dots) | batch, **changes)


def test_the_rank_of_the_launcher_does_not_matter(
    dots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # without RANK, load() refuses it
    with pytest.raises(ConfigError, match="bfloat16"):
        gpupipe.ray.dataset(config(dots), dtype="bfloat16")


def test_without_ray_it_says_what_to_install(dots: Path) -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "import gpupipe.ray\n"
        "try: gpupipe.ray.dataset('lfw')\n"
        "except gpupipe.EngineError as e: print(e)"
    )
    done = forked_python.run(["-c", code], has_torch_alone=True, check=True)
    assert install_command("ray") in done.stdout


def test_the_cluster_file_of_the_docs_fits_the_schema_of_ray() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    text = (Path(__file__).parents[1] / "docs" / "ray.md").read_text(encoding="utf-8")
    block = re.search(r"```\n(cluster_name:.*?)```", text, re.DOTALL)
    assert block is not None
    cluster = prepare_config(yaml.safe_load(block[1]))
    validate_config(cluster)
    assert cluster["available_node_types"]["cpu"]["min_workers"] == 4
