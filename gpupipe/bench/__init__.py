"""Measuring: what `gpupipe run` prints."""
