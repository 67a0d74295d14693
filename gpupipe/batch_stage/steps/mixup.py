"""mixup: each sample becomes a mean of itself and an earlier sample of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpupipe.batch_stage.batch_step import BatchStep, Images, MixedBatch
from gpupipe.batch_stage.mixing import mix_with_earlier, symmetric_beta
from gpupipe.dataset.spec import FLOATS
from gpupipe.pipeline.step import Params, Sampled, Spec, StepIncompatibleError, Uniforms
from gpupipe.schema.field_types import Positive

if TYPE_CHECKING:
    from torch import Tensor


class Mixup(BatchStep):
    """Mix images and labels as torchvision.transforms.v2.MixUp (Zhang et al. 2018).

    `lam` is drawn from Beta(alpha, alpha), once per batch. Sample i becomes
    lam * x[i] + (1 - lam) * x[i - k], and k is 1. Under `loader.repeats` k is the length of the
    longest run of views of one sample. So the result depends on all samples of the batch.

    Attributes:
        alpha: Both parameters of the beta distribution, above 0. The default is 1, the uniform
            distribution; the smaller it is, the less is mixed.
    """

    alpha: Positive = 1.0

    num_uniforms = 2
    mixes_samples = True

    def check(self, fields: Mapping[str, Spec]) -> None:
        for name, field in fields.items():
            if field.kind == "mask":
                raise StepIncompatibleError(
                    f"the field '{name}' is a mask, and a mean of class numbers is no class: leave "
                    f"'{name}' out of 'on:', or write 'cutmix', which moves masks too"
                )
            if field.dtype not in (*FLOATS, "float64"):
                raise StepIncompatibleError(
                    f"it needs floats, but '{name}' is {field.dtype}: write 'to_dtype: "
                    "{dtype: float32, scale: true}' as the last step of the pipeline"
                )

    def sample(self, u: Uniforms) -> Sampled:
        """Return lam: float64 (N,), one per batch: x[i] = lam * x[i] + (1 - lam) * x[i - k]."""
        return {"lam": symmetric_beta(u, self.alpha)}

    def torch(self, images: Images, labels: Tensor, p: Params) -> MixedBatch:
        lam, shift = float(p["lam"]), p["shift"]
        mixed = {name: mix_with_earlier(image, lam, shift) for name, image in images.items()}
        return mixed, mix_with_earlier(labels, lam, shift)
