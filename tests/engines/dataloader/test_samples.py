"""How a worker runs torch; its batches are in test_engine.py."""

import pytest
import torch

from gpupipe.engines.dataloader.samples import limit_to_one_thread


def test_torch_has_one_thread_and_then_those_that_it_had() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(ZeroDivisionError), limit_to_one_thread():
            assert torch.get_num_threads() == 1
            1 / 0  # noqa: B018
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
