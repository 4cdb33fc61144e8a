"""What holds for all tests: nothing asks a model hub, property tests are not timed."""

import os

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"

settings.register_profile("default", deadline=None, max_examples=60)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
