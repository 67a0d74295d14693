"""The batch stage: steps on whole batches, such as mixup, after the engine has delivered them.

`batch_step` is the contract of a step, and steps/ holds the built-in ones.
`stage` turns the list under `batch:` into a BatchStage, and `mixer` runs it on batches, in
torch, on their device. The folder imports the pipeline and everything below it; the config, the
loader and the folders above import it. Start reading in batch_step.py.
"""
