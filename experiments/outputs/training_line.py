"""Local training of a run in one line, for the header and the table."""

from collections.abc import Callable, Collection
from typing import Any

import fedjax_pfl as pfl

# Named where they differ from the default.
EXTRAS = (
    "lr_schedule", "lr_schedule_option", "optimizer", "optimizer_option", "momentum",
    "weight_decay", "clip_norm", "keep_optimizer_state", "wdr_weight", "batch_order", "augment",
    "share", "head", "batch_norm", "sampling", "stragglers", "straggler_schedule", "initializer",
    "dtype", "compute_dtype", "init_from", "init_name", "init_partial", "freeze", "lora_rank",
    "lora_ranks", "lora_alpha", "lora_layers", "cache_features", "base_dtype", "convolutions",
    "arrivals", "departures", "drift", "drift_rounds", "drift_concepts", "drift_share",
    "drift_stagger", "new_clients", "set",
)  # fmt: skip

# Flags that are not said by their name and value.
SAID: dict[str, Callable[[str, Any], str]] = {
    "set": lambda name, value: f"with {', '.join(value)}",
    "cache_features": lambda name, value: "features computed once",
    "keep_optimizer_state": lambda name, value: "optimizer states kept between rounds",
}


def describe_training(args: Any, num_clients: int | None, varied: Collection[str] = ()) -> str:
    """Format local epochs or steps, minibatches, learning rate, participation and further options.

    Args:
      args: the flags of a run.
      num_clients: clients that can be drawn; None where that varies.
      varied: flags to leave out, as a sweep varies them.
    """
    steps = args.local_steps is not None or "local_steps" in varied
    name = "local_steps" if steps else "local_epochs"
    count, what = args[name].value, "step" if steps else "epoch"
    last = ", incomplete ones left out" if args.drop_last else ""
    parts = {
        name: f"{count} local {what}{'' if count == 1 else 's'}",
        "batch_size": f"minibatches of {args.batch_size}{last}",
        "learning_rate": f"learning rate {args.learning_rate:g}",
        "learning_rate_decay": f"learning rate decay {args.learning_rate_decay:g}",
        "participation": f"participation {args.participation:g}",
    }
    if num_clients is not None:
        drawn = pfl.options.ParticipationOptions(
            participation=args.participation, sampling=args.sampling
        ).build(num_clients)
        who = f"{drawn.expected:g} of {num_clients}"
        who = f"all {num_clients} clients" if drawn.expected == num_clients else who
        mean = "" if drawn.poisson is None else " on average"
        parts["participation"] += f" ({who} in a round{mean})"
    if args.learning_rate_decay == 1:
        del parts["learning_rate_decay"]
    for extra in EXTRAS:
        flag = args[extra]
        if flag.value != flag.default:
            parts[extra] = SAID.get(extra, _format)(extra.replace("_", " "), flag.value)
    return ", ".join(text for flag, text in parts.items() if flag not in varied)


def _format(name: str, value: Any) -> str:
    return f"{name} {' '.join(value) if isinstance(value, list) else value}"
