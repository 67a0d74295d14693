"""Training over a data processing server: under Lightning's Trainer, and with torchrun's ranks, one
of whose runs is killed.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from nets import Seen
from test_ranks import ranks

import gpupipe
from helpers.served import serving
from test_lightning import fit, orders, pytestmark  # noqa: F401  # what Lightning's warnings are


def test_lightning_trains_over_a_server(config: dict[str, Any], tmp_path: Path) -> None:
    """Also from a checkpoint in the middle of an epoch."""
    expected, net = orders(config, 3), Seen()
    with serving(config) as server:
        there = config | {"loader": config["loader"] | {"server": server.address}}
        fit(there, tmp_path, net, val=False, engine="remote", max_epochs=2)
        assert [net.trained[e] for e in range(2)] == expected[:2]
        broken, saving = (
            Seen(stop_at=12),
            ModelCheckpoint(
                tmp_path / "kept", every_n_train_steps=11, save_top_k=-1, filename="{step}"
            ),
        )
        with pytest.raises(RuntimeError, match="stopped by the test"):
            fit(
                there,
                tmp_path,
                broken,
                val=False,
                engine="remote",
                callbacks=[saving],
                enable_checkpointing=True,
            )
        assert [broken.trained[0], broken.trained[1]] == [expected[0], expected[1][:4]]
        resumed = Seen()
        fit(
            there,
            tmp_path,
            resumed,
            val=False,
            engine="remote",
            ckpt_path=tmp_path / "kept" / "step=11.ckpt",
        )
        assert resumed.trained == {1: expected[1][3:], 2: expected[2]}


def test_ranks_over_a_server_go_on_where_a_run_was_killed(
    config: dict[str, Any], tmp_path: Path
) -> None:
    expected = []
    for rank in range(2):
        with gpupipe.load(
            config, shard={"rank": rank, "world_size": 2}, batch_size=3, ids=True, device="cpu"
        ) as loader:
            expected.append([[b["id"].tolist() for b in loader] for _ in range(2)])
    with serving(config, {"batch_size": 3}, clients=2) as server:
        (tmp_path / "small.yaml").write_text(
            yaml.safe_dump(config | {"loader": config["loader"] | {"server": server.address}})
        )
        killed = ranks(tmp_path, 2, "--engine", "remote", "--kill", "3", code=1)
        resumed = ranks(
            tmp_path,
            2,
            "--engine",
            "remote",
            "--epochs",
            "2",
            "--resume",
            str(tmp_path / "run" / "kept.pt"),
            into="again",
        )
    for rank in range(2):
        assert [line["ids"] for line in killed[rank]] == expected[rank][0][:3]
        assert [line["ids"] for line in resumed[rank]] == expected[rank][0][2:] + expected[rank][
            1
        ], "the state was saved behind step 2"


@pytest.mark.parametrize("world", [3])
def test_ranks_that_the_server_does_not_deal_out_to_are_told(
    config: dict[str, Any], world: int
) -> None:
    with (
        serving(config, clients=2) as server,
        pytest.raises(gpupipe.ServerError, match="serve with --clients 3"),
    ):
        gpupipe.load(
            config, engine="remote", server=server.address, shard={"rank": 0, "world_size": world}
        )
