"""linear_transformation: multiply all numbers of an image by one matrix, such as for whitening."""

from dataclasses import replace
from typing import Any, Self

from pydantic import model_validator

from gpupipe.pipeline.spec_checks import check_decoded, check_picture, count_channels
from gpupipe.pipeline.step import Params, Primitives, Spec, Step, StepIncompatibleError, of_any_size
from gpupipe.runtime.memory import to_device
from gpupipe.schema.number_array import Matrix, Vector


class LinearTransformation(Step):
    """Multiply the image by a matrix, as torchvision.transforms.v2.LinearTransformation.

    The image is flattened to a row of C*H*W numbers, in this order. The result is (row -
    mean_vector) @ transformation_matrix, in the image's shape and the matrix's dtype. uint8 images
    are taken as 0 to 255. The input must be uint8, float16 or float32, and all images must have
    one size. Masks are left alone.

    Numbers that are written as a list are float32. An .npy file holds float32 or float64, and a
    relative path begins in the working directory. DALI has no operator for this step: on the CPU
    it calls torch, one image after another, and on a GPU the step is refused.

    Attributes:
        transformation_matrix: The matrix, D x D, where D is C*H*W: a list of rows, or the path of
            an .npy file.
        mean_vector: The D numbers to subtract first: a list, or the path of an .npy file.
    """

    transformation_matrix: Matrix
    mean_vector: Vector

    speed_advice = (
        "its time grows with the square of the number of pixels: make the images smaller before it"
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        matrix, mean = self.transformation_matrix, self.mean_vector
        rows, columns = matrix.shape
        if rows != columns:
            raise ValueError(f"transformation_matrix is {rows}x{columns}, but should be square")
        if mean.shape != (rows,):
            raise ValueError(
                f"transformation_matrix is {rows}x{rows}, but mean_vector has {mean.shape[0]} "
                "numbers: write one for each row"
            )
        if matrix.dtype != mean.dtype:
            raise ValueError(
                f"transformation_matrix is {matrix.dtype}, but mean_vector is {mean.dtype}: save "
                "both in one dtype; a list is float32"
            )
        return self

    def infer_spec(self, input_spec: Spec) -> Spec:
        if input_spec.kind == "mask":
            return check_decoded(input_spec)
        check_picture(input_spec)
        channels, count = count_channels(input_spec), self.mean_vector.shape[0]
        if input_spec.size is None or channels is None:
            raise StepIncompatibleError(
                "its matrix is for images of one size, but sizes differ here: put it after a crop "
                "or resize to a fixed size"
            )
        height, width = input_spec.size
        if channels * height * width != count:
            raise StepIncompatibleError(
                f"its matrix is for images of {count} numbers, but the image has {channels} x "
                f"{height} x {width} = {channels * height * width}: write a resize before it, or "
                "compute the matrix for this size"
            )
        return replace(input_spec.with_values("normalized"), dtype=self.mean_vector.dtype)

    @classmethod
    def guess_spec(cls, input_spec: Spec) -> Spec:
        return replace(of_any_size(input_spec).with_values("normalized"), dtype="float32")

    def lower(self, image: Primitives, p: Params) -> None:
        if self._kind != "mask":
            image.call_torch(lambda pixels: self.torch(pixels, {}))

    def torch(self, image: Any, p: Params) -> Any:
        if self._kind == "mask":
            return image
        import torch

        matrix, mean = (
            to_device(torch.from_numpy(numbers.values), image.device)
            for numbers in (self.transformation_matrix, self.mean_vector)
        )
        row = image.reshape(1, -1) - mean
        return torch.mm(row, matrix).reshape(image.shape)
