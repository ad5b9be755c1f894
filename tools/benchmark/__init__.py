"""The cases of `tools.benchmark` and the PyTorch loop for comparison."""
