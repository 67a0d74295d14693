"""The built-in steps, one per file, named after the torchvision v2 transform in snake_case.

A step imports the contract (gpupipe.pipeline.step), shared code (gpupipe.augment, and spec_checks,
geometry and container of gpupipe.pipeline) and parameter types (gpupipe.schema.field_types), and
no other step. Only the registry gpupipe.pipeline.step_registry.STEPS imports steps, by name.
`decode` is the step that turns image files into pixels. Start reading in random_horizontal_flip.py.
"""
