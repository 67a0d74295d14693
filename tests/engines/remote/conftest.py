from helpers.leftovers import nothing_left  # noqa: F401  # used by every test
