"""A simulation: its rounds on the device, and the host's part."""
