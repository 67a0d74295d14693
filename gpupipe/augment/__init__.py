"""Code that several steps share: policies, colours, noise, and base classes.

`policy` is the base of steps that draw operations; `policy_ops` says what the operations mean,
`policy_tables` has their magnitudes and sub-policies, and `timm_policies` those of timm.
`color_ops` lists the functions that change colours; `color_step` is the base of steps that call
them. `noise` makes random numbers for each pixel. This folder imports gpupipe.pipeline
and folders that gpupipe.pipeline builds on; gpupipe.steps and gpupipe.engines import this folder.
Start reading in color_ops.py.
"""
