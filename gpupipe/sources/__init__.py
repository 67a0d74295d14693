"""The built-in sources, one per file: NAME.py holds `data: {source: NAME}`."""
