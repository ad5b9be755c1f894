"""The cases of `experiments.benchmark` and the PyTorch loop for comparison."""
