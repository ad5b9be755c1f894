"""What happens to an update between a client and the server: privacy, compression, attacks."""
