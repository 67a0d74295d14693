"""The built-in steps of the batch stage, one per file. The file's name is the name in the YAML.

A step imports the contract (gpupipe.batch_stage.batch_step) and what steps share
(gpupipe.batch_stage.mixing, gpupipe.pipeline.container), and never another step. No module
imports a step by its module: gpupipe.batch_stage.batch_step.BATCH_STEPS does, by its name. Start
reading in mixup.py.
"""
