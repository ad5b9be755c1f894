"""Partitions of data sets among clients: rules, one file per paper or family, and importers."""
