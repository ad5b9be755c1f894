"""Tools for lint and the pages of the documentation."""
