"""Which pipelines can be delivered in which format."""

from gpupipe.config import LoaderConfig
from gpupipe.config.batch_formats import explain_wrong_format
from gpupipe.pipeline.build import build_pipeline
from gpupipe.schema.document import Document
from helpers.annotated_folder import SPECS

FLOATS = ["decode", {"to_dtype": {"dtype": "float32", "scale": True}}]


def test_dicts_and_tuples_take_every_pipeline() -> None:
    pipeline = build_pipeline("p", Document("p", ["decode"]))
    for name in ("dict", "tuple"):
        settings = LoaderConfig.model_validate({"format": name})
        assert explain_wrong_format(pipeline, settings) == ""


def test_a_dtype_of_the_loader_counts_too() -> None:
    pipeline = build_pipeline("p", Document("p", FLOATS), annotations=SPECS)
    fits = LoaderConfig.model_validate({"format": "torchvision", "dtype": "float16"})
    assert explain_wrong_format(pipeline, fits) == ""
    wrong = LoaderConfig.model_validate({"format": "torchvision", "dtype": "uint8"})
    assert "usual values of uint8" in explain_wrong_format(pipeline, wrong)
    raw = build_pipeline("p", Document("p", ["decode"]), annotations=SPECS)
    cast = LoaderConfig.model_validate({"format": "torchvision", "dtype": "float32"})
    assert "to_dtype" in explain_wrong_format(raw, cast)
    assert explain_wrong_format(raw, LoaderConfig.model_validate({"format": "detr"})) == ""
