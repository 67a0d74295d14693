"""one_hot: class numbers become soft labels, with label smoothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpupipe.batch_stage.batch_step import BatchStep, Images, MixedBatch
from gpupipe.pipeline.step import Params
from gpupipe.schema.field_types import Probability

if TYPE_CHECKING:
    from torch import Tensor


class OneHot(BatchStep):
    """Make soft labels, float32 (B, classes), and leave the images alone.

    The share of every class is multiplied by 1 - label_smoothing, and label_smoothing / classes is
    added, as in timm.data.mixup.one_hot and torch.nn.CrossEntropyLoss. With mixup or cutmix the
    order does not matter: a mean of smoothed labels is the smoothed mean. Without smoothing it
    changes nothing after another step, and in a random_choice it stands for leaving the batch as it
    is.

    Attributes:
        label_smoothing: 0 to 1. The default is 0: one class has 1, all others have 0.
    """

    label_smoothing: Probability = 0.0

    def torch(self, images: Images, labels: Tensor, p: Params) -> MixedBatch:
        if self.label_smoothing:
            rest = self.label_smoothing / labels.shape[1]
            labels = labels * (1.0 - self.label_smoothing) + rest
        return dict(images), labels
