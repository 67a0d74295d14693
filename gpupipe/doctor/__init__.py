"""Checks the machine, and says what is wrong with it and what to do.

`checks` queries the machine. `software_rules`, `gpu_rules` and `machine_rules` judge the answers,
each as a `Finding`. The command `gpupipe doctor` imports this folder. Start reading in checks.py.
"""
