"""The built-in sources: one a file."""
