"""Names that results, their tables and their pictures share."""

HEADLINE = "personalized"
COUNTS = ("local_steps", "forward_samples")  # of each client's computation in a round
