"""The contract of a step, and the pipeline that steps form.

`step` is the contract, and `primitives` the pixel operations that steps lower onto. Steps share
`spec_checks` (refusing inputs), `geometry` (formulas), `tensors` (torch), and the bases
`geometry_step` (steps that move pixels) and `container` (steps that hold steps). `step_registry`
finds steps by name. `build` puts the numbers of each epoch into a YAML list with `schedules`, reads
it with `parsing`, and checks each step against the one before it with `entry`, into a `pipeline`.
`gpupipe.augment`, the steps, the config and the engines import this folder; `gpupipe.dataset.spec`
describes the data between two steps. Start reading in step.py.
"""
