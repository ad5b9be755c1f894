"""Fast convolutions, and the form of layers for each platform."""
