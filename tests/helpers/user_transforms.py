"""A transform as users write them, for from_torchvision."""

from typing import Any

from torchvision.transforms.v2 import RandomCrop


class TwoSided(RandomCrop):
    """A crop that it mirrors by itself, as classes of users' do, from torch's global generator."""

    def forward(self, *inputs: Any) -> Any:
        return super().forward(*inputs).flip(-1)
