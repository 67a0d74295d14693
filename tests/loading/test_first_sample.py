from pathlib import Path
from typing import Any

import pytest
import torch

from gpupipe.errors import SampleError, StepError
from helpers.loaders import loading

load = loading(engine="cpu", batch_size=2)


def steps(name: str) -> list[Any]:
    returns: dict[str, Any] = {}
    return ["decode", {"python": {"call": f"helpers.user_functions:{name}", "returns": returns}}]


def test_a_function_that_draws_globally_is_refused_before_the_first_batch(faces: Path) -> None:
    with pytest.raises(StepError, match="draws_of_torch"):
        load(faces, steps("draws_of_torch"))


def test_the_first_sample_is_named(faces: Path) -> None:
    first = sorted(faces.glob("*/*"))[0].name
    with pytest.raises(StepError, match=rf"halve .* returned .*{first}"):
        load(faces, steps("halve"))


def test_users_draws_go_on_as_without_it(faces: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    load(faces, steps("stamp")).close()
    assert torch.equal(torch.rand(3), expected)


def test_a_broken_first_sample_is_left_to_the_run(tmp_path: Path, faces: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(b"no image")
    (tmp_path / "a" / "1.jpg").write_bytes(next(faces.glob("*/*.jpg")).read_bytes())
    with (
        load(tmp_path, steps("stamp"), shuffle=False) as loader,
        pytest.raises(SampleError, match=r"0\.jpg"),
    ):
        next(iter(loader))
    with load(tmp_path, steps("stamp"), on_error="skip", max_bad=1) as loader:
        assert [batch["id"].tolist() for batch in loader] == [[1]]
