"""The contract of a step, and the pipeline that steps form.

`step` holds the contract and `primitives` the pixel operations that steps lower onto.
`gpupipe.dataset.spec` describes the data that flows between two steps. `axes` says which layouts
and dtypes a step accepts, `geometry` holds shared formulas, and `pipeline` builds and checks the
whole list. Steps, the config and the engines import this folder. Start reading in step.py.
"""
