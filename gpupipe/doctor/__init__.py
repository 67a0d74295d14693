"""Looks at the machine, and says what is wrong with it and what to do.

`checks` finds out, `rules` say what the findings mean. The command `gpupipe doctor` imports it.
Begin to read in checks.py.
"""
