__version__ = "0.5.0"

ENGINE_REVISION = 2  # raised whenever the same configuration gives other numbers in all algorithms
