"""Local training and scoring: the work of a client on its own samples."""
