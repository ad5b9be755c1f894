"""What a sweep tries and what it writes."""
