"""Components of algorithms, and what several algorithms share."""
