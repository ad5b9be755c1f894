"""Networks by name, one file for each family."""
