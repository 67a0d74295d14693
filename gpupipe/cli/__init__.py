"""The command line. Only this folder prints to the terminal.

Most modules hold a group of commands. `app` is the entry point. The commands share `console` and
`arguments`. `catalog` finds names and completes them, `parameters` describes settings for
`gpupipe show`. Nothing imports this folder. Start reading in app.py.
"""
