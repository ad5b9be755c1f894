"""Which client holds which samples: one file for each paper or family."""
