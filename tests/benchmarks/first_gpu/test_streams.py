import pytest
import torch


def batches(*numbers: int) -> list[dict[str, torch.Tensor]]:
    return [{"image": torch.full((2, 3), float(n)), "label": torch.tensor([n, n])} for n in numbers]


def test_a_batch_that_changed_has_another_checksum() -> None:
    from first_gpu import streams

    calls: list[int] = []
    found, _ = streams.checksums(batches(1, 2, 3), 5, lambda: calls.append(1), wait=False)
    same, _ = streams.checksums(batches(1, 2, 3, 1, 2), 5, lambda: None, wait=True)
    other, _ = streams.checksums(batches(1, 2, 4), 5, lambda: None, wait=True)
    assert len(calls) == 5, "epochs follow one another"
    assert found == same
    assert [a == b for a, b in zip(found, other, strict=True)] == [True, True, False, True, True]


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.int64]
)
def test_a_checksum_sees_a_swap(dtype: torch.dtype) -> None:
    from first_gpu import streams

    field = torch.arange(12).reshape(3, 4).to(dtype)
    assert streams.checksum(field) != streams.checksum(field.flip(0))
    assert streams.checksum(field.t()) == streams.checksum(field.t().contiguous())


def test_a_checksum_waits_for_no_gpu() -> None:
    from first_gpu import streams
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        total = streams.checksum(torch.zeros(4, 3, 8, 8, device="cuda"))
    assert (total.device.type, total.dtype) == ("cuda", torch.int64)
