"""Parts of algorithms that stand in files of their own."""
