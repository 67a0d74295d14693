"""Reads the schemas and arguments of DALI's operators, for the step dali.

`operators` reads DALI's schema of an operator, and `arguments` its arguments in YAML. The step
imports both. The DALI engine runs an operator on small images for the step, and returns an
`operators.Trial`; the engine imports only this class and `operators.Operator`. Start reading in
operators.py.
"""
