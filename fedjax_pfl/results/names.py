"""Names that results, their tables and their pictures share."""

HEADLINE = "personalized"
COUNTS = ("local_steps", "forward_samples")  # of what each client computes in a round
