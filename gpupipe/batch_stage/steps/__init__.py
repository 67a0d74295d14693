"""The built-in steps of the batch stage, each in the file of its name or as SHARED_FILES lists.

A file imports the contract (gpupipe.batch_stage.batch_step) and shared code
(gpupipe.pipeline.container), and no other file of steps. Only the registry
gpupipe.batch_stage.batch_step.BATCH_STEPS imports steps, by name. Start reading in mixup.py.
"""

SHARED_FILES = {"mixup": ("cutmix", "mixup", "one_hot")}
"""The names of the steps in each file that holds several."""
