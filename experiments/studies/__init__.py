"""Studies: tables and a figure of algorithms in several settings."""
