"""Hypothesis has no deadline: beside other load any example may take long."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
