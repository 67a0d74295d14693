"""The batch stage: steps on whole batches, such as mixup, after the engine has delivered them.

`batch_step` has the base classes of the steps, and steps/ holds the built-in steps. `stage` turns
the list under `batch:` in a config into a BatchStage. `mixer` runs the steps of a BatchStage on
batches, in torch, on the device of the batches.

The folder imports the pipeline and everything below it; the config, the loader and the folders
above import it. Start reading in batch_step.py.
"""
