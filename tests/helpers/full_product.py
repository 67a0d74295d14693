"""Whether this run tests full products of cases (`make test-all`), or a choice of each."""

import os

IS_FULL = os.environ.get("GPUPIPE_TEST_ALL") == "1"
