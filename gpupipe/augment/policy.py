"""AugmentPolicy: the base of steps that draw operations from a table, such as rand_augment.

A policy applies several operations in turn; a slot is the place of one. `sample` draws an operation
and a value for each sample and slot; see policy_ops.py for what they mean:

    op, value   (B, slots)            the operations of each sample, one after the other

A policy such as AugMix (https://arxiv.org/abs/1912.02781) has several chains of slots. Each chain
runs on the image, and the results are blended with each other and with the image:

    op, value   (B, chains, slots)    the operations; 0, Identity, after the end of a chain
    weight      (B, chains + 1)       the weights of the image and of each chain; their sum is 1

`ChainMixture` draws the weights and the lengths of the chains. The weights are computed from gamma
variates. These are quantiles of the gamma distribution at uniform draws.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.policy_ops import Warping, apply_op, lower_op
from gpupipe.augment.policy_tables import OpTable, choose
from gpupipe.pipeline.spec_checks import check_color, check_per_channel, check_picture
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Step, StepIncompatibleError
from gpupipe.schema.field_types import Fill, Resampling

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

_MAX_DRAWN_DEPTH = 3
"""The maximum number of operations in a chain whose length is drawn."""
_POINTS = 20_001
_TAIL = 40.0


class AugmentPolicy(Step):
    """The base of steps that draw image operations. They take uint8 images of 1 or 3 channels.

    On a mask, the operations that move pixels take nearest pixels, and those that change colours
    do nothing.

    Subclasses define `table` or `op_names`, and `sample`. `sample` returns a dict: `op`, int32
    (B, slots), the numbers of the operations of each sample, which are applied in turn, and
    `value`, float64 (B, slots), the value of each operation. With `has_chains`, both are
    (B, chains, slots), and `weight`, float64 (B, chains + 1), has the weights of the image and of
    each chain.

    Attributes:
        interpolation: "nearest" (the default) or "bilinear", for the operations that move pixels.
        fill: The value outside the image, 0 to 255: one number, or one per channel. The default
            is black.
        has_whole_shifts: Whether shifts are cut to whole pixels, as torchvision's are.
        has_chains: Whether several chains of operations run on the image, and their results are
            blended with it. A policy with chains refuses masks.
    """

    interpolation: Resampling = "nearest"
    fill: Fill | None = None

    interpolates = True
    has_whole_shifts: ClassVar[bool] = True
    has_chains: ClassVar[bool] = False

    @property
    def table(self) -> OpTable:
        """The operations that a sample may draw, with the magnitudes of each.

        Steps that follow torchvision define it. TimmAugment defines `op_names` instead.
        """
        raise NotImplementedError

    @property
    def op_names(self) -> Sequence[str]:
        """The operations that a sample may draw: by default those of `table`."""
        return self.table.names

    @property
    def warping(self) -> Warping:
        """The settings of the operations that move pixels."""
        return Warping(self.interpolation, self.fill, self.has_whole_shifts)

    def infer_spec(self, input_spec: Spec) -> Spec:
        if input_spec.kind != "mask":
            check_color(input_spec, ("uint8",))
        elif self.has_chains:
            raise StepIncompatibleError(
                "it blends images, and no masks: leave the mask out of 'on'"
            )
        else:
            check_picture(input_spec)
        return input_spec if self.fill is None else check_per_channel("fill", self.fill, input_spec)

    def lower(self, image: Primitives, p: Params) -> None:
        if not self.has_chains:
            self._lower_chain(image, p["op"], p["value"])
            return
        chains = [
            partial(self._lower_chain, op=p["op"][:, n], value=p["value"][:, n])
            for n in range(p["op"].shape[1])
        ]
        image.blend([lambda part: None, *chains], p["weight"])

    def _lower_chain(self, image: Primitives, op: Ints, value: Floats) -> None:
        for slot in range(op.shape[1]):
            changes_colors = self._kind != "mask"
            ops, values = op[:, slot], value[:, slot]
            lower_op(image, self.op_names, ops, values, self.warping, changes_colors)

    def torch(self, image: Any, p: Params) -> Any:
        if not self.has_chains:
            return self._torch_chain(image, p["op"], p["value"])
        import torch

        weight = p["weight"].tolist()
        mix = weight[0] * image.to(torch.float32)
        for share, op, value in zip(weight[1:], p["op"], p["value"], strict=True):
            mix.add_(self._torch_chain(image, op, value), alpha=share)
        return mix.to(image.dtype)

    def _torch_chain(self, image: Any, ops: Any, values: Any) -> Any:
        for op, value in zip(ops, values, strict=True):
            image = apply_op(image, int(op), float(value), self.warping, self._kind != "mask")
        return image


@dataclass(frozen=True)
class ChainMixture:
    """Draws the chains of operations whose results a policy such as AugMix blends.

    Attributes:
        width: The number of chains.
        depth: The number of operations in a chain; 0 draws it for each chain, from 1 to 3.
        alpha: The parameter of the Dirichlet and the beta distribution of the weights, above 0.
    """

    width: int
    depth: int
    alpha: float

    @property
    def slots(self) -> int:
        """The largest number of operations that a chain can have."""
        return self.depth or _MAX_DRAWN_DEPTH

    def num_uniforms(self, draws_per_op: int) -> int:
        """Return the number of uniform draws that `draw` needs for one sample."""
        return self.width + 2 + self.width + self.width * self.slots * draws_per_op

    def draw(self, u: Floats, draws_per_op: int, draw_ops: Callable[[Floats], Sampled]) -> Sampled:
        """Draw the weights, the lengths and the operations of the chains of B samples.

        Args:
            u: Uniform draws, (B, num_uniforms(draws_per_op)).
            draws_per_op: The number of uniform draws per operation.
            draw_ops: Called with the draws of all operations, (draws_per_op, B, width, slots).
                Returns a dict of the arrays `op` and `value`, (B, width, slots) each.

        Returns:
            A dict: `op`, int32 (B, width, slots), the operations; 0, Identity, after the end of a
            chain. `value`, (B, width, slots), their values. `weight`, float64 (B, width + 1), the
            weights of the image and of each chain; their sum is 1.
        """
        num_weights = self.width + 2
        weight = draw_weights(u[:, :num_weights], self.alpha, self.width)
        depth = draw_depths(u[:, num_weights : num_weights + self.width])
        of_ops = u[:, num_weights + self.width :]
        shape = len(u), draws_per_op, self.width, self.slots
        drawn = draw_ops(np.moveaxis(of_ops.reshape(shape), 1, 0))
        depth = np.full_like(depth, self.depth) if self.depth else depth
        return {"op": cut_chains(drawn["op"], depth), "value": drawn["value"], "weight": weight}


def draw_weights(u: Floats, alpha: float, width: int) -> Floats:
    """Draw the weights with which AugMix blends the image and its chains.

    Args:
        u: Uniform draws, (B, width + 2).
        alpha: The parameter of the Dirichlet and the beta distribution.
        width: The number of chains.

    Returns:
        (B, width + 1): the weight of the image, then those of the chains. Each row sums to 1.
    """
    gamma = np.maximum(gamma_quantile(u, alpha), np.finfo(np.float64).tiny)
    between, among = gamma[:, :2], gamma[:, 2:]
    share = between / between.sum(1, keepdims=True)
    chains = among / among.sum(1, keepdims=True) * share[:, 1:]
    return np.concatenate([share[:, :1], chains], 1)


def draw_depths(u: Floats) -> NDArray[np.int64]:
    """Turn uniform draws into chain lengths from 1 to 3, as AugMix does by default."""
    return 1 + choose(u, _MAX_DRAWN_DEPTH)


def cut_chains(op: Ints, depth: NDArray[np.int64]) -> Ints:
    """Replace the operations after the end of each chain with Identity.

    Args:
        op: The operations, (B, chains, slots).
        depth: The length of each chain, (B, chains).
    """
    return np.where(np.arange(op.shape[-1]) < depth[..., None], op, 0).astype(np.int32)


def gamma_quantile(u: Floats, alpha: float) -> Floats:
    """Return the quantiles of the gamma distribution with shape `alpha` and scale 1.

    Args:
        u: Probabilities, of any shape.
        alpha: The shape, above 0.
    """
    cumulative, quantiles = _gamma_table(alpha)
    return np.interp(u, cumulative, quantiles)


@cache
def _gamma_table(alpha: float) -> tuple[Floats, Floats]:
    """Return the cumulative gamma distribution at points x, and the points x.

    For a small `alpha` the density over x is steep or infinite at 0, but over y = x ** alpha it is
    proportional to exp(-x). So for alpha below 1.5, the points are equally spaced in y.
    """
    if alpha < 1.5:
        y = np.linspace(0.0, _TAIL**alpha, _POINTS)
        x = y ** (1.0 / alpha)
        density = np.exp(-x)
    else:
        reach = 12.0 * np.sqrt(alpha)
        y = x = np.linspace(max(alpha - reach, 0.0), alpha + reach + _TAIL, _POINTS)
        mode = alpha - 1.0
        with np.errstate(divide="ignore"):
            density = np.exp(mode * np.log(x / mode) - (x - mode))
    steps = np.diff(y) * (density[1:] + density[:-1]) / 2.0
    cumulative = np.concatenate([[0.0], np.cumsum(steps)])
    return cumulative / cumulative[-1], x
