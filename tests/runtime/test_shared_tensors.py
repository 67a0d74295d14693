import os

import torch

from gpupipe.runtime.shared_tensors import SharedTensors


def test_what_one_object_writes_the_other_reads() -> None:
    ours = SharedTensors.create()
    theirs = SharedTensors(ours.fd)
    small, large = torch.arange(12).reshape(3, 4), torch.rand(3, 200, 100)
    assert torch.equal(theirs.view(ours.write(small)), small)
    begin = len(theirs.native) - 4096
    place = theirs.write(large, begin)  # the file grows
    assert place["begin"] == begin
    assert torch.equal(ours.view(place), large)
    assert torch.equal(
        ours.view({**place, "begin": 0, "end": 96, "dtype": "int64", "shape": [12]}),
        small.flatten(),
    )
    os.close(ours.fd)


def test_a_view_is_of_the_shared_memory() -> None:
    ours = SharedTensors.create()
    theirs = SharedTensors(ours.fd)
    place = ours.write(torch.zeros(2, 2))
    seen = theirs.view(place)
    ours.write(torch.ones(2, 2))
    assert seen.sum() == 4
    os.close(ours.fd)
