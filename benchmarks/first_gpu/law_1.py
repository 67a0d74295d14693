"""Law 1 and streams, as tests/gpu has them: the same pixels in every batch, order and run."""

import tests

if __name__ == "__main__":
    tests.report("law_1", __doc__, tests.LAW_1)
