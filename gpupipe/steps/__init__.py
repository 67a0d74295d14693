"""The built-in steps, one or a few alike per file, named after torchvision v2 in snake_case.

A step is in the file of its name, or in one that SHARED_FILES lists. A file of steps imports no
other file of steps. It imports the contract (gpupipe.pipeline.step), parameter types
(gpupipe.schema.field_types), and shared code: gpupipe.augment, and spec_checks, geometry and
container of gpupipe.pipeline. Only the registry gpupipe.pipeline.step_registry.STEPS imports steps,
by name. `decode` is the step that turns image files into pixels. Start reading in random_flips.py.
"""

SHARED_FILES = {
    "annotation_changes": (
        "clamp_bounding_boxes",
        "clamp_keypoints",
        "convert_bounding_box_format",
        "sanitize_bounding_boxes",
        "sanitize_keypoints",
        "set_clamping_mode",
    ),
    "auto_augment": ("aug_mix", "auto_augment", "rand_augment", "trivial_augment_wide"),
    "color_jitter": ("color_jitter", "random_photometric_distort"),
    "containers": ("identity", "random_apply", "random_choice", "random_order"),
    "crop_and_pad": ("center_crop", "pad", "random_crop"),
    "degradations": ("gaussian_blur", "gaussian_noise", "jpeg"),
    "detection_crops": ("fixed_size_crop", "random_size_crop"),
    "grayscale": ("grayscale", "random_grayscale", "rgb"),
    "multi_crop": ("five_crop", "ten_crop"),
    "random_color_changes": (
        "random_adjust_sharpness",
        "random_autocontrast",
        "random_channel_permutation",
        "random_equalize",
        "random_invert",
        "random_posterize",
        "random_solarize",
    ),
    "random_flips": ("random_horizontal_flip", "random_vertical_flip"),
    "random_resizing": ("random_resize", "random_shortest_size", "scale_jitter"),
    "random_warps": ("random_affine", "random_perspective", "random_rotation"),
    "resize": ("random_resized_crop", "resize"),
    "to_dtype": ("normalize", "to_dtype"),
}
"""The names of the steps in each file that holds several."""
