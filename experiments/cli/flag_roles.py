"""Roles of a run's flags: what they change beside, or instead of, an algorithm's numbers."""

PLACES = frozenset({"data_dir", "output_dir", "compilation_cache"})
TRACKERS = frozenset({"tensorboard", "wandb", "mlflow"})
KEPT = frozenset({"checkpoint_seconds", "keep_state", "headline"})  # what is kept and shown
RECORDED = frozenset({"save_models", "matrix_rounds"})
CODE = frozenset({"import_file", "trust_flagfiles"})
DEVICES = frozenset({"devices", "mesh", "distributed", "client_state"})
# Batched computation changes how sums are rounded.
EXECUTION = frozenset({"client_execution", "seed_execution", "eval_batch_size"})
COMPARED = frozenset({"algorithms", "set"})  # the rows of a comparison
MEASUREMENTS = frozenset({
    "adapt_epochs", "adapt_steps", "adapt_leaves", "adapt_when", "adapt_learning_rate",
    "adapt_batch_size", "moments", "eval_every", "score_clients",
})  # fmt: skip

# Flags that change no algorithm's result, but for the rounding of sums over devices.
NEUTRAL = PLACES | TRACKERS | KEPT | DEVICES | {"trust_flagfiles"}
# Flags that another command's runs don't take over: places, and code, which only a user may name.
NOT_INHERITED = CODE | {"output_dir", "compilation_cache", "preset", "settings_from", "flagfile"}
