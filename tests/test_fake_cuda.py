"""The stand-in for the CUDA runtime makes contexts where CUDA does."""

import pytest
import torch

from helpers.fake_cuda import FakeCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def test_a_stream_of_another_gpu_alone_makes_a_context_on_the_current_one(cuda: FakeCuda) -> None:
    stream = torch.cuda.Stream(torch.device("cuda", 1))
    assert cuda.contexts == {1}
    with torch.cuda.stream(stream):
        assert (cuda.device, torch.cuda.current_stream().stream_id) == (1, 7)
    assert cuda.contexts == {0, 1}


def test_a_device_around_it_makes_none(cuda: FakeCuda) -> None:
    stream = torch.cuda.Stream(torch.device("cuda", 1))
    with torch.cuda.device(1), torch.cuda.stream(stream):
        assert torch.cuda.current_stream().stream_id == 7
    assert cuda.contexts == {1}
    assert torch.cuda.current_stream(1).stream_id == 0


def test_a_wait_fails_where_the_gpu_is_broken(cuda: FakeCuda) -> None:
    cuda.error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal"):
        torch.cuda.synchronize(1)
    assert cuda.waits == [1]
