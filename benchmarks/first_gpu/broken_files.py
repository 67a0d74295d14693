"""Cut and damaged files, files of every kind and failures of a GPU, as tests/gpu has them."""

import tests

if __name__ == "__main__":
    tests.report("broken_files", __doc__, tests.BROKEN_FILES)
