"""All that an author of an algorithm reads."""
