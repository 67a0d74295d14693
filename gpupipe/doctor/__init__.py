"""Checks the machine, and reports each problem with advice.

`software_checks`, `gpu_checks` and `checks` hold the checks. Their functions check_* query the
machine; their pure functions judge_* turn the answers into a `Finding` each. `checks.CHECKS` lists
all checks. The command `gpupipe doctor` imports this folder. Start reading in finding.py.
"""
