"""Steps, and the pipeline that they make.

`step` is the contract of a step, `spec` (in gpupipe.dataset) what flows between two of them, `axes`
and `dtypes` say which arrays and numbers a step takes, `geometry` has the matrices, and `pipeline`
builds and checks the whole. Steps, the config and engines import it. Begin to read in step.py.
"""
