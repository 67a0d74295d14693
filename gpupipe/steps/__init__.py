"""The built-in steps: one a file, named after the torchvision v2 transform in snake_case."""
