"""The profile of the pure tests: hypothesis prints how to repeat a failure."""

import warnings

from hypothesis import HealthCheck, settings

with warnings.catch_warnings():
    # kafka-python reads its schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

assert kafka.__version__

settings.register_profile(
    "pure", print_blob=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("pure")
