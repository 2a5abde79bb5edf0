"""The tests of perdure; shared code is imported as `tests.<module>`."""
