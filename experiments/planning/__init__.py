"""Programs compiled for devices that are only described, and what their text tells."""
