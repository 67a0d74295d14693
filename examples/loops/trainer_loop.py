"""Hugging Face's Trainer over a Hugging Face data set; see examples/hf_trainer.py for a resume.

python examples/loops/trainer_loop.py FOLDER_OF_CLASS_FOLDERS
"""

import sys
from typing import Any

import datasets
import transformers

import gpupipe


class Trainer(transformers.Trainer):
    def get_train_dataloader(self) -> Any:
        return loader


data = datasets.load_dataset("imagefolder", data_dir=sys.argv[1], split="train")
steps = [
    "decode",
    {"random_resized_crop": {"size": 64}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
]
settings = transformers.TrainingArguments("hf_trainer", num_train_epochs=1, report_to=[])
with gpupipe.load(
    data, pipeline=steps, batch_size=16, format="huggingface", device=str(settings.device)
) as loader:
    shape = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    shape.num_labels = len(loader.index.classes)
    net = transformers.ResNetForImageClassification(shape)
    result = Trainer(net, settings).train()
    print(f"{result.global_step} steps, loss {result.training_loss:.3f}")
