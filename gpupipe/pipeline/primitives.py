"""The pixel primitives: a step lowers onto them, and a back end implements them.

    Step.lower(image, p)     a step in steps/: calls primitives for a whole batch
            |
            v
    Primitives               this page: what each call means
            |
            v
    a back end               defers the calls, fuses neighbours, runs its own operators
                             (engines/dali/operators/)

A back end may do the work in any way that yields these pixels. `Step.torch` is the reference.

Points, sizes and windows are float64 arrays of shape (B, 2), or (2,) if all samples share them.
They are [height, width] or [top, left] in pixels unless a name says otherwise. For an array that is
not an image they hold one number per spatial axis, in the order of its layout.

    coordinates      0     1     2     3      corners of pixels are whole numbers
                     |  a  |  b  |  c  |      pixel n covers [n, n + 1); its centre is n + 0.5

    decode           bytes of a file -> H x W x C
    crop             out[y, x] = in[y + top, x + left]; `fill` where the window leaves the image
    pad              edge        a a [a b c d] d d
                     reflect     c b [a b c d] c b
                     symmetric   b a [a b c d] d c
    resize           centre y + 0.5 of the output lies at (y + 0.5) * H_in / H_out of the input;
                     nearest takes the pixel floor(y * H_in / H_out), as torchvision does
    flip             horizontal  a b c -> c b a; vertical swaps the rows
    transpose        out[y, x] = in[x, y]: rows become columns
    warp             +------+      ______     centre x of the output takes the value of the input
                     | out  |     /      /    at linear @ (x - output) + source
                     |   x -+----/-> in /
                     +------+   /______/      `fill` outside the image
    perspective      like warp, with a 3x3 matrix in homogeneous coordinates: the centre x, y of the
                     output takes the value of the input at [a, b] / c, where [a, b, c] is
                     matrix @ [x, y, 1]
    erase            out[y, x] = `value` or noise inside the window, and in[y, x] outside
    elastic          out[p] = in[p + displacement[p]], with smooth random displacements
    add_noise        out = in + noise, a random number for each channel of each pixel
    color_matrix     out[i] = sum over j of matrix[i, j] * in[j], for the channels of each pixel
    to_dtype         truncates floats, saturates integers, NaN -> 0; `scale` maps 0..255 to 0..1
    normalize        (x - mean) / std
    color            one of torchvision's functions that change colours: see color_ops.py
    switch           each sample goes through one of several branches
    blend            out = sum over n of weights[n] * branch n of the image
    call_torch       out = function(in) for each image, in torch
    apply            any operator of one back end: see `Primitives.apply`

    primitive      arrays                      dtypes            new pixels are
    -------------  --------------------------  ----------------  ------------------------------
    decode         no: it makes image files    makes uint8, 16   decoded as docs/formats.md says
    crop, flip     any with these axes [1]     all               copies
    transpose      CHW, HWC, HW; any channels  all               copies
    pad            CHW, HWC, HW; 1 to 4 ch.    uint8, f16, f32   copies
    resize         H and W, any other axes [1] see below         interpolated, rounded to nearest
    warp           CHW, HWC, HW; 1 to 4 ch.    uint8, f16, f32   interpolated, rounded to nearest
    perspective    CHW, HWC, HW; 1 to 4 ch.    uint8, f16, f32   interpolated, rounded to nearest
    erase          CHW, HWC, HW; 1 to 4 ch.    uint8, f16, f32   copies of `value`
    add_noise      CHW, HWC, HW; 1 to 4 ch.    uint8, f16, f32   computed in int16 or float32
    elastic        CHW, HWC, HW; 1 or 3 ch.    uint8, f16, f32   interpolated, rounded to nearest
    color_matrix   CHW, HWC; 1 to 4 ch.        uint8, f16, f32   computed in float32, truncated
    color          CHW, HWC, HW; 1 or 3 ch.    uint8, f16, f32   as color_ops.py says
    blend          any                         uint8             computed in float32, truncated
    to_dtype       any                         all               converted
    normalize      C and up to 4 others [2]    f16, f32, f64     computed in the input's dtype

    [1] at most two axes before the spatial ones and none after, or one of each, or one after
    [2] if C is last; else at most one axis before C and three after

Every primitive works on decoded image files. A mask is a field like any other. Its steps get
`interpolation: nearest`, so that every primitive copies its class numbers. float16 is interpolated
in float32 and rounded once. `spec_checks` refuses other layouts and dtypes.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.annotations import Annotations

Fill = tuple[float, ...]
"""One number, or one per channel."""
Pair = tuple[float, float]
Seeds = NDArray[np.int64]
"""The seed of each sample, (B,)."""


class Primitives(Protocol):
    """The samples of one field of a batch, as `Step.lower` sees them.

    The methods change the samples in place. A step must call the same methods for every batch: a
    back end may build a graph from the calls for the first batch, and use the calls for later
    batches only to compute the values that it feeds to the graph. So drawn values may change the
    arguments, but not which methods are called. DALI raises NoLoweringError if arrays that get
    random numbers (`erase` with seeds) differ in the number of channels.

    Attributes:
        spec: Shape, dtype and layout of the samples at this point.
        present: bool (B,), the samples to which the calls apply. Outside `switch`: all True.
        annotations: The boxes and points on the samples, on the back end that moves coordinates;
            None on all back ends that process pixels.
    """

    spec: Spec
    present: NDArray[np.bool_]
    annotations: Annotations | None

    @property
    def size(self) -> Any:
        """The current size as [height, width] in pixels, float64 (B, 2) or (2,)."""

    @property
    def width_height(self) -> Any:
        """The current size as [width, height] in pixels, for formulas in x and y."""

    def decode(self, mode: str, apply_exif_orientation: bool, dtype: str = "uint8") -> None:
        """Decode the bytes of an image file.

        Args:
            mode: "rgb" or "gray".
            apply_exif_orientation: Rotate and mirror the image as its EXIF tag says.
            dtype: "uint8" or "uint16".
        """

    def crop(self, anchor: Any, shape: Any, fill: Fill | None = None) -> None:
        """Cut a window out of the image.

        Args:
            anchor: [top, left] of the window in whole pixels; may be negative.
            shape: [height, width] of the window in whole pixels.
            fill: The value outside the image: one number, or one per channel. None if the window
                always lies inside.

        Raises:
            SampleIncompatibleError: If `fill` is None and the window reaches outside the image.
        """

    def pad(self, before: Any, after: Any, mode: str) -> None:
        """Add a border that repeats pixels of the image. For a border of one value, call `crop`.

        Args:
            before: [top, left] pixels to add.
            after: [bottom, right] pixels to add.
            mode: "edge", "reflect" or "symmetric", as in torchvision's Pad.
        """

    def resize(self, shape: Any, interpolation: str, antialias: bool) -> None:
        """Resample the image to another size.

        Args:
            shape: The new [height, width] in whole pixels.
            interpolation: "nearest", "bilinear" or "bicubic" (a = -0.5).
            antialias: Low-pass before shrinking.
        """

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        """Mirror those samples whose flag is 1.

        Args:
            horizontal: int32 (B,), 1 to swap left and right; None for no sample.
            vertical: int32 (B,), 1 to swap top and bottom; None for no sample.
        """

    def transpose(self) -> None:
        """Swap rows and columns, so that [height, width] becomes [width, height].

        For some samples of a batch alone, call it in a branch of `switch`.
        """

    def warp(
        self,
        linear: Any,
        source: Any,
        output: Any,
        interpolation: str,
        fill: Fill | None,
        shape: Any = None,
    ) -> None:
        """Resample through an affine map from output to source coordinates.

        Args:
            linear: float64 (B, 2, 2) or (2, 2), the inverse of the forward map.
            source: [x, y] of the fixed point in the source image, such as its centre.
            output: [x, y] where `source` lies in the output.
            interpolation: "nearest" or "bilinear".
            fill: The value outside the image: one number, or one per channel. None: black,
                interpolated as torchvision does for fill=None.
            shape: [height, width] of the output; the image's own by default.
        """

    def perspective(self, matrix: Any, interpolation: str, fill: Fill) -> None:
        """Resample through a perspective map from output to source coordinates, at the same size.

        Args:
            matrix: float64 (B, 3, 3) or (3, 3). With [a, b, c] = matrix @ [x, y, 1], the output's
                point [x, y] lies at [a / c, b / c] in the source.
            interpolation: "nearest" or "bilinear".
            fill: The value outside the image: one number, or one per channel.
        """

    def erase(self, anchor: Any, shape: Any, value: Fill, seeds: Seeds | None = None) -> None:
        """Replace a window of the image by one value, or by standard normal numbers.

        Args:
            anchor: [top, left] of the window in whole pixels.
            shape: [height, width] of the window in whole pixels. The window lies inside the image.
            value: One number, or one per channel; whole numbers for uint8.
            seeds: The seed of each sample's numbers, (B,); None for `value`. Only for floats.
        """

    def add_noise(self, seeds: Seeds, mean: float, sigma: float, clip: bool) -> None:
        """Add normal noise to each channel of each pixel: see augment/noise.py.

        Noise for uint8 is truncated to whole levels, and sums are clamped to 0..255.

        Args:
            seeds: The seed of the noise of each sample, (B,).
            mean: The mean of the noise, in units of the dtype's range.
            sigma: Its standard deviation, in the same unit.
            clip: Whether sums of floats are clamped to 0..1.
        """

    def elastic(
        self, seeds: Seeds, alpha: Pair, sigma: Pair, interpolation: str, fill: Fill
    ) -> None:
        """Move pixels by smooth random displacements, as torchvision's functional.elastic does.

        Args:
            seeds: The seed of the displacements of each sample, (B,).
            alpha: The strength along [x, y], in half pixels.
            sigma: The standard deviations [x, y] of the blur in pixels; 0 for both for no blur.
                Images must be larger than the blur: see augment/elastic.py.
            interpolation: "nearest" or "bilinear".
            fill: The value outside the image: one number, or one per channel.
        """

    def color_matrix(self, matrix: Any) -> None:
        """Multiply the channels of each pixel by a matrix.

        uint8 results are truncated to whole levels, as torchvision's are, and clamped to 0..255.

        Args:
            matrix: float64 (out, in) or (B, out, in), with one row per channel of the output.
        """

    def to_dtype(self, dtype: str, scale: bool) -> None:
        """Convert to another dtype.

        Args:
            dtype: Its NumPy name, such as "float32".
            scale: Whether to map the full range of an integer dtype to 0..1 for floats, or back.
                Between two integer dtypes, the bits are shifted.
        """

    def normalize(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """Compute (x - mean) / std, with one number for all channels or one per channel."""

    def color(self, op: str, *values: Any) -> None:
        """Apply a function of torchvision.transforms.v2.functional that changes colours.

        Args:
            op: The function's name, one of `color_ops.COLOR_OPS`.
            *values: The function's arguments, in the order of `COLOR_OPS[op].values`: arrays
                (B, ...).

        Raises:
            NoLoweringError: If the back end has no such function.
            SampleIncompatibleError: If the function mirrors the image's borders, and an image has
                too few pixels for that.
        """

    def switch(self, index: Any, branches: Sequence[Callable[[Any], None]]) -> None:
        """Let each sample go through one of several branches.

        Each branch processes only the samples that take it. All branches must make the same dtype
        and number of channels; sizes may differ.

        Args:
            index: The branch of each sample, integers (B,) from 0 to len(branches) - 1.
            branches: Each is called once with a `Primitives` of the samples that take the branch.
                The arguments of its calls are still for the whole batch, (B, ...). A branch that
                makes no call leaves its samples alone. Of augment.ColorBranches, an engine may read
                what the branches are instead of calling them.
        """

    def blend(self, branches: Sequence[Callable[[Any], None]], weights: Any) -> None:
        """Replace each sample by a weighted sum of the results of several branches.

        The samples must be uint8, and the branches must keep size, dtype and channels. Results are
        truncated to whole levels, and clamped to 0..255.

        Args:
            branches: Each is called once with a `Primitives` of all samples. The result of a branch
                that makes no call is the sample itself.
            weights: float64 (B, len(branches)), the factor of each branch.
        """

    def call_torch(
        self, function: Callable[..., Any], *values: NDArray[Any], size: Any = None
    ) -> None:
        """Replace each image by `function(image, *values)`, computed by torch on a CPU.

        Args:
            function: It gets a tensor (C, H, W), and the sample's part of each of `values`. It
                returns a tensor (C, H, W).
            *values: Arrays (B, ...), int32 or float32.
            size: The new [height, width] in pixels, if the function changes it.
        """

    def apply(
        self, op: str, make: Callable[..., Any], *values: NDArray[Any], size: Any = None
    ) -> None:
        """Insert an operator that is no primitive. The step then runs only on the DALI back end.

        `make` gets and returns nodes of DALI's graph, so every other back end raises
        NoLoweringError here. Calls before the operator are not fused with calls after it.

        Args:
            op: The operator's name, for profiles and reports.
            make: Called with the pixels, a DALI DataNode of layout HWC, and with one DataNode per
                entry of `values`. Returns the DataNode that replaces the pixels.
            *values: Arrays (B, ...) with the operator's arguments per sample; fed as float32 if
                they are floats, else as int32.
            size: The new [height, width] in pixels, if the operator changes it.
        """
