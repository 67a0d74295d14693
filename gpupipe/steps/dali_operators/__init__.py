"""Reads the schemas and arguments of DALI's operators, for the step dali.

`operators` reads DALI's schema of an operator, and `arguments` its arguments in YAML. The step
imports both. `operators.TryOperator` is the protocol by which the step has the DALI engine run an
operator on small images; the engine imports only that. Start reading in operators.py.
"""
