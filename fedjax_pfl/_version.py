__version__ = "0.4.0"

ENGINE_REVISION = 1  # raised whenever the same configuration gives other numbers in all algorithms
