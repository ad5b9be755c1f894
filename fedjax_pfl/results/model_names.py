"""Names shared by results, tables and pictures."""

PERSONALIZED = "personalized"  # the model that a client uses
GLOBAL = "global"  # the server's single model
TRAINED = "trained"  # a copy of it after one further local training
ADAPTED = "adapted"  # a copy of it after other local steps
PREVIOUS = "previous"  # the split of test samples in the concept before the current one
# Whole numbers of each client in a round: of its computation, and of its traffic beside blocks.
COUNTS = ("local_steps", "forward_samples", "numbers_up", "numbers_down")
