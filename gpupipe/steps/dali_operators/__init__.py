"""What the step dali knows of DALI's operators without running them.

`operators` reads DALI's schema of an operator, `arguments` reads its arguments from YAML, and
`operators.TryOperator` is the protocol by which the step asks the DALI engine what an operator
makes of images.
The step alone imports the first two, and the engine the third. Start reading in operators.py.
"""
