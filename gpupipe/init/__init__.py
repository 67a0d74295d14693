"""Looks at a folder of data, and writes a config that reads it: `gpupipe init`.

`detect` finds out which source reads what is there: class folders itself, other data by a module
for each kind, `masks`, `lists`, `arrays`, `shards`, `tables`. `survey` reads the index and some
headers for counts, sizes and classes, and says what they leave uncertain. `config_text` writes the
YAML. The command line imports this folder; it imports sources and the config by their contracts.
Start reading in detect.py.
"""
