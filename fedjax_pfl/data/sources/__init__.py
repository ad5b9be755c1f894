"""Data sources, one file per format."""
