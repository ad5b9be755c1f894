"""The cases of `experiments.benchmark` and what they are measured against."""
