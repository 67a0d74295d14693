"""The type of a field between two steps."""

import torch

from gpupipe.dataset.spec import Spec


def test_the_spec_of_arrays_has_the_size_of_each_axis() -> None:
    spec = Spec.of_array("int16", (7, None, 3, 5), "TCHW")
    assert (spec.channels, spec.height, spec.width, spec.other_sizes) == (None, 3, 5, (7,))
    assert spec.shape == (7, None, 3, 5)
    assert (spec.space, spec.size, spec.at_least) == ("HW", (3, 5), (3, 5))
    assert str(spec) == "(7, ?, 3, 5) int16"
    assert str(Spec()) == "encoded bytes"


def test_sizes_that_differ_between_samples_are_no_size() -> None:
    spec = Spec.of_array("uint8", (None, 5, 3), "HWC")
    assert (spec.size, spec.sides, spec.at_least) == (None, (None, 5), (1, 5))
    sized = spec.with_size((8, 9))
    assert (sized.size, sized.at_least, sized.channels) == ((8, 9), (8, 9), 3)
    assert spec.with_size((8, None)).at_least == (8, 1)


def test_canonical_sizes_have_the_channels_first() -> None:
    assert Spec.of_array("uint8", (4, 6, 3), "HWC").canonical_sizes == (3, 4, 6)
    assert Spec.of_array("uint8", (4, 6), "HW").canonical_sizes == (1, 4, 6)


def test_how_a_tensor_differs_is_said() -> None:
    spec = Spec.of_array("float32", (3, 4, None), "CHW")
    for tensor, said in [
        (torch.zeros(3, 4, 9), ""),
        (torch.zeros(3, 5, 9), "(3, 5, 9) float32, but its spec says (3, 4, ?) float32 (CHW)"),
        (torch.zeros(3, 4), "(3, 4) float32, but its spec says"),
        (torch.zeros(3, 4, 9, dtype=torch.uint8), "(3, 4, 9) uint8, but"),
        ([1, 2], "a list, but should be a tensor"),
    ]:
        found = spec.describe_mismatch(tensor, spec.canonical_sizes)
        assert found.startswith(said)
        assert bool(found) == bool(said)
