"""Execution of the client axis on devices and in processes."""
