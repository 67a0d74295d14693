"""Images so small that everything but the loading of data costs nothing."""

from helpers.dots import config as config  # noqa: PLC0414  # a fixture
from helpers.dots import dots as dots  # noqa: PLC0414  # a fixture
