import pytest

from gpupipe.errors import ConfigError
from gpupipe.schema.document import Document
from gpupipe.schema.yaml_files import parse
from gpupipe.ultralytics_adapter.hyperparameters import Hyperparameters, read_hyperparameters

OTHERS = """
task mode model data epochs time patience batch imgsz save save_period cache device workers project
name exist_ok pretrained optimizer verbose seed deterministic single_cls rect cos_lr close_mosaic
resume amp fraction profile freeze multi_scale overlap_mask mask_ratio dropout val split save_json
save_hybrid conf iou max_det half dnn plots source vid_stride stream_buffer visualize augment
agnostic_nms classes retina_masks embed show save_frames save_txt save_conf save_crop show_labels
show_conf show_boxes line_width format keras optimize int8 dynamic simplify opset workspace nms lr0
lrf momentum weight_decay warmup_epochs warmup_momentum warmup_bias_lr box cls dfl pose kobj
label_smoothing nbs copy_paste_mode auto_augment erasing crop_fraction cfg tracker cls_pw obj obj_pw
iou_t anchor_t anchors fl_gamma loss_ota
""".split()
"""Keys of cfg/default.yaml of Ultralytics 8.3, and of the hyp.yaml of YOLOv5 and YOLOv7."""


def test_keys_of_training_are_left_out() -> None:
    values = dict.fromkeys(OTHERS, 1) | {"task": "detect", "imgsz": 320}
    assert read_hyperparameters(Document("x", values)) == Hyperparameters(imgsz=320)


def test_an_empty_file_has_the_defaults() -> None:
    assert read_hyperparameters(parse("", "hyp.yaml")) == Hyperparameters()


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            "lr0: 0.01\nfliprl: 0.5\n",
            ["hyp.yaml:2:1: unknown key 'fliprl'; did you mean 'fliplr'?"],
        ),
        ("scale: 1.0\n", ["hyp.yaml:1:8: scale is 1.0, but should be below 1"]),
        (
            "degrees: -5\nmosaic: 2\n",
            [
                "hyp.yaml:1:10: degrees is -5, but should be at least 0",
                "hyp.yaml:2:9: mosaic is 2, but should be at most 1",
            ],
        ),
        ("task: classify\n", ["hyp.yaml:1:7: task is 'classify': that of boxes and points alone"]),
        ("- degrees\n", ["hyp.yaml:1:1: this is no mapping of hyperparameters"]),
    ],
)
def test_mistakes_have_their_line(text: str, messages: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        read_hyperparameters(parse(text, "hyp.yaml"))
    found = str(raised.value).splitlines()
    assert len(found) == len(messages)
    assert all(line.startswith(message) for line, message in zip(found, messages, strict=True))
