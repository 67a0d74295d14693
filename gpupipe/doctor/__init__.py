"""Examines the machine, and says what is wrong with it and what to do.

`checks` queries the machine; `rules` judge the values. The command `gpupipe doctor` imports this
folder. Start reading in checks.py.
"""
