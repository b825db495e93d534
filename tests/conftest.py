"""Settings of all tests."""

import hypothesis

# The same cases in every run, however slow the machine; --hypothesis-profile=default looks further.
hypothesis.settings.register_profile("t2t", deadline=None, derandomize=True)
hypothesis.settings.load_profile("t2t")
