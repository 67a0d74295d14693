"""Ragged: the values of a batch whose samples have different numbers of rows."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


class Ragged:
    """The rows of all samples of a batch, one sample after the other.

    Sample i has the rows `values[offsets[i] : offsets[i + 1]]`.

    Args:
        values: The rows of all samples, (sum N, ...), on any device.
        offsets: Where the rows of each sample begin, and where the last ones end, int64 (B + 1,).

    Attributes:
        values: The rows of all samples, (sum N, ...).
        offsets: Where the rows of each sample begin, int64 (B + 1,). They stay on the CPU, so that
            a batch on a GPU is split without waiting for the GPU.

    Raises:
        ValueError: `offsets` does not begin at 0, descends, or does not end at len(values).

    Examples:
        >>> boxes = gpupipe.Ragged(torch.zeros(3, 4), torch.tensor([0, 2, 2, 3]))
        >>> len(boxes), boxes[0].shape, boxes[1].shape
        (3, torch.Size([2, 4]), torch.Size([0, 4]))
        >>> padded, is_row = boxes.pad(0.0)
        >>> padded.shape, is_row.sum(1)
        (torch.Size([3, 2, 4]), tensor([2, 0, 1]))
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: Tensor, offsets: Tensor) -> None:
        self.values, self.offsets = values, offsets.cpu()
        if self.offsets.dtype != torch.int64 or self.offsets.dim() != 1 or not len(self.offsets):
            raise ValueError(
                f"offsets are {self.offsets.dtype} {tuple(self.offsets.shape)}, but should be "
                "int64 (B + 1,)"
            )
        array = self.offsets.numpy()  # which holds the interpreter's lock for less time than torch
        first, last = int(array[0]), int(array[-1])
        if first or last != len(values) or (array[1:] < array[:-1]).any():
            raise ValueError(
                f"offsets run from {first} to {last}, but should ascend from 0 to {len(values)}, "
                "the number of rows"
            )

    @classmethod
    def unchecked(cls, values: Tensor, offsets: Tensor) -> "Ragged":
        """Return a Ragged without the checks of `Ragged(...)`. The offsets must be on the CPU."""
        ragged = cls.__new__(cls)
        ragged.values, ragged.offsets = values, offsets
        return ragged

    @classmethod
    def from_list(cls, rows: Sequence[Tensor]) -> "Ragged":
        """Join the rows of each sample, tensors (N, ...) that are alike but for N.

        Raises:
            ValueError: There is no sample: the shape and dtype of the rows are then unknown.
        """
        if not rows:
            raise ValueError("there is no sample, and so no shape and dtype of the rows")
        counts = torch.tensor([0, *(len(of_sample) for of_sample in rows)])
        return cls(torch.cat(list(rows)), counts.cumsum(0))

    @property
    def counts(self) -> Tensor:
        """The number of rows of each sample, int64 (B,), on the CPU."""
        return self.offsets.diff()

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Tensor:
        """Return the rows of sample i, a view (N, ...); negative numbers count from the end."""
        number = i + len(self) if i < 0 else i
        if not 0 <= number < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        first, end = self.offsets[number : number + 2].tolist()
        return self.values[first:end]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.unbind())

    def unbind(self) -> tuple[Tensor, ...]:
        """Return the rows of each sample as views (N, ...)."""
        ends = self.offsets.numpy()  # which holds the interpreter's lock for less time than torch
        return torch.split_with_sizes(self.values, (ends[1:] - ends[:-1]).tolist())

    def pad(self, value: float, length: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the rows of all samples in one dense tensor.

        Args:
            value: Fills the rows that a sample lacks.
            length: The number of rows that each sample gets, L; by default, as many as the sample
                with the most has.

        Returns:
            The rows, (B, L, ...), and whether each is a row of its sample, bool (B, L). Both are on
            the device of the values.

        Raises:
            ValueError: A sample has more than `length` rows.
        """
        longest = int(self.counts.max()) if len(self) else 0
        length = longest if length is None else length
        if longest > length:
            raise ValueError(f"a sample has {longest} rows, which do not fit into {length}")
        is_row = torch.arange(length) < self.counts[:, None]
        is_row = is_row.to(self.values.device, non_blocking=True)
        padded = self.values.new_full((len(self), length, *self.values.shape[1:]), value)
        padded[is_row] = self.values
        return padded, is_row

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Ragged":
        """Return a copy with the values on a device; without a copy if they are there already."""
        return Ragged(self.values.to(device, non_blocking=non_blocking), self.offsets)

    def pin_memory(self) -> "Ragged":
        """Return a copy with the values in page-locked memory; torch's DataLoader calls this."""
        return Ragged(self.values.pin_memory(), self.offsets)

    def __repr__(self) -> str:
        rows = f"{len(self.values)} rows of {len(self)} samples"
        shape = tuple(self.values.shape[1:])
        return f"<Ragged: {rows}, each {shape} {self.values.dtype} on {self.values.device}>"
