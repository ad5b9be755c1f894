__version__ = "0.4.0"

ENGINE_REVISION = 2  # raised whenever the same configuration gives other numbers in all algorithms
