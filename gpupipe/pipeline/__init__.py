"""The contract of a step, and the Pipeline, a checked list of steps.

`step` is the contract, and `primitives` the pixel operations that steps lower onto. Steps share
`spec_checks` (refusing inputs), `geometry` (formulas), `tensors` (torch), and the bases
`geometry_step` (steps that move pixels) and `container` (steps that hold steps). `step_registry`
finds steps by name. `build` makes a `pipeline` from a YAML list: `schedules` replaces schedules
with each epoch's numbers, `parsing` parses the steps, and `entry` checks that they fit together.
`gpupipe.augment`, the steps, the config and the engines import this folder; `gpupipe.dataset.spec`
describes the data between two steps. Start reading in step.py.
"""
