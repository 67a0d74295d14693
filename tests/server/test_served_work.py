"""The plans of a server are those of loaders in process, for any rank and from any position."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from gpupipe import config as configs
from gpupipe.config import Shard
from gpupipe.errors import ServerError, StateError
from gpupipe.loading.assembly import create_sampler
from gpupipe.opening import load
from gpupipe.server.options import ServerOptions
from gpupipe.server.served_work import Plans, prepare_loader


@pytest.fixture
def checked(config: dict[str, Any]) -> configs.Config:
    return configs.read(config)


@pytest.mark.parametrize("servers", [1, 2])
def test_each_rank_has_the_plans_of_a_loader(checked: configs.Config, servers: int) -> None:
    index = checked.source.index()
    for number in range(servers):
        shard = Shard(rank=number, world_size=servers)
        loader = checked.loader.model_copy(update={"shard": shard})
        plans = Plans(replace(checked, loader=loader), index, 2)
        assert plans.world_size == 2 * servers
        for rank in range(2):
            alone = Shard(rank=plans.global_rank(rank), world_size=plans.world_size)
            of_rank = checked.loader.model_copy(update={"shard": alone})
            sampler = create_sampler(replace(checked, loader=of_rank), index)
            expected = [plan.ids.tolist() for plan in sampler.begin()]
            assert [plan.ids.tolist() for plan in plans.of_pass(rank, 0, 0)] == expected
            assert plans.count_steps(rank, 0, 0) == len(expected)


@pytest.mark.parametrize(("length", "may_be_served"), [(680, True), (720, False)])
def test_a_description_takes_half_a_message_at_most(
    tmp_path: Path, length: int, may_be_served: bool
) -> None:
    """Class names of 680 and of 720 characters, 3,000 of them, where 2 MiB is the limit."""
    classes = [f"{number:a>{length}}" for number in range(3000)]
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "files.csv").write_text(
        "path,label\n" + "".join(f"a.png,{name}\n" for name in classes)
    )
    data = {"source": "file_list", "file": str(tmp_path / "files.csv")}
    loader = load({"data": data, "pipeline": ["decode"], "loader": {"batch_size": 2}}, engine="cpu")
    options = ServerOptions(address="tcp://127.0.0.1:0")
    with loader if may_be_served else pytest.raises(ServerError, match="2,097,152 is the limit"):
        prepare_loader(loader, options)
    loader.close()


def test_a_pass_may_begin_in_the_middle_of_an_epoch(checked: configs.Config) -> None:
    plans = Plans(checked, checked.source.index(), 1)
    whole = plans.of_pass(0, 3, 0)
    rest = plans.of_pass(0, 3, whole[1].end)
    assert [p.ids.tolist() for p in rest] == [p.ids.tolist() for p in whole[2:]]
    identity = (0, 3, whole[1].end, 1)
    assert plans.plan(identity).tag == identity
    assert plans.plan(identity).ids.tolist() == whole[3].ids.tolist()


def test_a_position_after_the_end_is_refused(checked: configs.Config) -> None:
    with pytest.raises(StateError):
        Plans(checked, checked.source.index(), 1).count_steps(0, 0, 10_000)
