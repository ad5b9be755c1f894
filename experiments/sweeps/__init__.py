"""The files that a sweep writes."""
