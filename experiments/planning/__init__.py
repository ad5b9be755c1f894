"""Programs compiled for described devices, and costs read from their text."""
