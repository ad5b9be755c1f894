"""How the rows of the client axis are executed."""
