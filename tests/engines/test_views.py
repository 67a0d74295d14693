"""Views: several fields out of one decode, on both engines, from a server, and after a resume."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.cpu.engine import CpuEngine
from gpupipe.engines.cpu.lowering import StepLowering
from helpers.jpeg_kinds import encode, several_scans
from helpers.loaders import ENGINES
from helpers.reference import emitted
from helpers.served import serving

NAMES = ["global_0", "global_1", "local"]
PIPELINE = {
    "steps": ["decode", {"random_horizontal_flip": {"p": 0.5}}],
    "views": {
        "global": {
            "count": 2,
            "steps": [
                {"random_resized_crop": {"size": 64, "scale": [0.4, 1]}},
                {"random_apply": {"transforms": [{"grayscale": {"num_output_channels": 3}}]}},
            ],
        },
        "local": {
            "steps": [
                {"random_affine": {"degrees": 20}},
                {"resize": {"size": [32, 48]}},
                {"to_dtype": {"dtype": "float32", "scale": True}},
            ]
        },
    },
}


def config(root: Path) -> dict[str, Any]:
    loader = {"batch_size": 8, "device": "cpu", "ids": True, "threads": 2}
    return {
        "data": {"source": "folder", "root": str(root)},
        "pipeline": PIPELINE,
        "loader": loader,
    }


def by_id(loader: gpupipe.Loader) -> dict[int, dict[str, torch.Tensor]]:
    return {
        int(id): {name: batch[name][n] for name in NAMES}
        for batch in loader
        for n, id in enumerate(batch["id"])
    }


@pytest.mark.parametrize("options", ENGINES, ids=["dali", "cpu", "dataloader"])
def test_each_view_is_a_field(photos: Path, options: dict[str, Any]) -> None:
    with gpupipe.load(config(photos), **options) as loader:
        batch = next(iter(loader))
    assert list(batch) == [*NAMES, "label", "id"]
    assert [tuple(batch[name].shape) for name in NAMES] == [
        (8, 3, 64, 64),
        (8, 3, 64, 64),
        (8, 3, 32, 48),
    ]
    assert [batch[name].dtype for name in NAMES] == [torch.uint8, torch.uint8, torch.float32]
    differing = (batch["global_0"] != batch["global_1"]).flatten(1).any(1)
    assert differing.all(), "each copy has draws of its own"


def test_engines_make_the_same_views(photos: Path) -> None:
    made = []
    for options in ENGINES:
        with gpupipe.load(config(photos), **options) as loader:
            made.append(by_id(loader))
    *others, reference = made
    for other in others:
        assert other.keys() == reference.keys()
        for id, views in other.items():
            for name, scale in zip(NAMES, (1, 1, 255), strict=True):
                difference = (views[name].float() - reference[id][name].float()).abs() * scale
                assert difference.mean() < 1.5, f"{name} of sample {id}"


def test_copies_of_a_view_are_lowered_at_once_to_the_same_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [encode((50 + n, 60), "420") for n in range(4)]
    files.append(dict(several_scans((70, 60)))["progressive"])  # runs alone
    (tmp_path / "a").mkdir()
    for n, file in enumerate(files):
        (tmp_path / "a" / f"{n}.jpg").write_bytes(file)
    made = []
    for finds in (True, False):
        if not finds:
            monkeypatch.setattr(
                StepLowering, "_find_alike", lambda self, name: [(view,) for view in NAMES]
            )
        with gpupipe.load(config(tmp_path), engine="cpu", batch_size=3) as loader:
            assert isinstance(loader.engine, CpuEngine)
            (groups,) = loader.engine._phases[0]._alike.values()
            made.append(by_id(loader))
        assert (groups == [("global_0", "global_1"), ("local",)]) == finds
    together, alone = made
    assert len(together) == len(files)
    for id, views in together.items():
        assert all(torch.equal(views[name], alone[id][name]) for name in NAMES)


def test_a_file_is_decoded_once_for_all_views(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gpupipe.load(config(photos), engine="dali") as loader:
        operators = emitted(loader)
    assert operators.count("decoders.image") == 1
    assert not [op for op in operators if op == "decoders.image_slice"]

    decoded = []
    decode = EncodedImage.decode

    def counted(self: EncodedImage, *arguments: Any) -> Any:
        decoded.append(1)
        return decode(self, *arguments)

    monkeypatch.setattr(EncodedImage, "decode", counted)
    with gpupipe.load(config(photos), engine="dataloader", workers=0) as loader:
        samples = by_id(loader)
    assert len(decoded) == len(samples)


@pytest.mark.parametrize("options", ENGINES, ids=["dali", "cpu", "dataloader"])
def test_a_resume_delivers_the_same_views(photos: Path, options: dict[str, Any]) -> None:
    with gpupipe.load(config(photos), **options) as loader:
        batches = iter(loader)
        next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        expected = next(batches)
    with gpupipe.load(config(photos), **options, batch_size=4) as loader:
        loader.load_state_dict(state)
        found = next(iter(loader))
    assert found["id"].tolist() == expected["id"].tolist()[:4]
    assert all(torch.equal(found[name], expected[name][:4]) for name in NAMES)


@pytest.mark.parametrize("options", ENGINES, ids=["dali", "cpu", "dataloader"])
def test_a_tuple_holds_all_views_and_the_label(photos: Path, options: dict[str, Any]) -> None:
    with gpupipe.load(config(photos), **options, format="tuple", dtype="float32") as loader:
        views, label = next(iter(loader))
    assert [tuple(view.shape[2:]) for view in views] == [(64, 64), (64, 64), (32, 48)]
    assert {view.dtype for view in views} == {torch.float32}
    assert label.shape == (8,)


def test_a_server_sends_all_views(photos: Path) -> None:
    with gpupipe.load(config(photos)) as loader:
        expected = by_id(loader)
    with (
        serving(config(photos)) as server,
        gpupipe.connect(server.address, device="cpu", ids=True) as client,
    ):
        found = by_id(client)
    assert found.keys() == expected.keys()
    assert all(
        torch.equal(found[id][name], views[name])
        for id, views in expected.items()
        for name in NAMES
    )
