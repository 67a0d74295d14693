"""Checks the machine, and says what is wrong with it and what to do.

`software_checks`, `gpu_checks` and `checks` query the machine with functions check_*, and judge the
answers with pure functions judge_*, each of which returns a `Finding`. `checks` also lists all of
them. The command `gpupipe doctor` imports this folder. Start reading in finding.py.
"""
