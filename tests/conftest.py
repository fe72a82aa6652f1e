"""What all tests share."""

from hypothesis import settings

# A shared machine stalls now and then; a slow example is no failure.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
