"""The built-in steps of the batch stage, one per file. The file's name is the name in the YAML.

A step imports the contract (gpupipe.batch_stage.batch_step) and shared code
(gpupipe.batch_stage.mixing, gpupipe.pipeline.container), and never another step. Only the registry
gpupipe.batch_stage.batch_step.BATCH_STEPS imports steps, by name. Start reading in mixup.py.
"""
