"""A federation: the clients' data, their model, local training and participation."""
