"""The results of a simulation: numbers, tables, pictures and files."""
