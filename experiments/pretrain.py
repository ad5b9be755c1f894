"""A base model, trained centrally on public samples: `python -m experiments.pretrain --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("pretrain")

import time
from pathlib import Path
from typing import Any

import absl.flags
import jax

import fedjax_pfl as pfl

from .cli import data_flags, devices, flags, shell
from .cli.config import ExperimentConfig, set_precision
from .cli.flag_groups import Group, new_path
from .cli.start import called

USAGE = f"""\
Train a network centrally on the public part of a data set and write its body as a safetensors file,
which runs begin with. The same --public in a run keeps these samples from its clients:

  {called("pretrain")} --dataset=fashion_mnist --data_dir=DATA --public=classes:0-4 \\
      --model=vit_tiny --model_option=depth=2 --optimizer=adam --learning_rate=0.001 \\
      --output=base.safetensors
  {called("run")} --dataset=fashion_mnist --data_dir=DATA --public=classes:0-4 \\
      --model=vit_tiny --model_option=depth=2 --init_from=base.safetensors --lora_rank=4

Without --public the network is trained on the whole data set. The file has hashes of the training
samples, and a run notes how many of them its clients hold.
"""
BELOW = f"""
Flags of {called("run")} on data, the network, optimizer and batches apply. Those on clients, rounds
and uploads are ignored, as are freezing and adapters, so a run's preset can be given."""
ENDINGS = (".safetensors",)
# Options of the network and of local training that are the clients' own.
CLIENTS = (
    "freeze", "lora_rank", "lora_ranks", "lora_alpha", "lora_layers",
    "cache_features", "base_dtype", "local_steps", "batch_order", "keep_optimizer_state",
    "extra_loss",
)  # fmt: skip


def define(values: absl.flags.FlagValues) -> None:
    """Define the flags beside those of a run."""
    group = Group(values, "pretrain")
    group.integer("epochs", 10, "passes over the public samples", 1)
    meaning = "write the classifier too, for clients with the same classes"
    group.switch("with_head", False, meaning)
    group.text("output", None, "file to write, NAME.safetensors; must not exist yet")


def parse(argv: list[str]) -> ExperimentConfig:
    """Return the flags of a command line, the program's name first."""
    return flags.parse(argv, define)


@shell.script()
def main(argv: list[str]) -> int:
    """Run the command."""
    config = parse(argv)
    if flags.answered(config, USAGE, ("pretrain", "data", "training"), define, BELOW):
        return 0
    output = new_path("output", config.output, ENDINGS, in_folder=True)
    if output is None:
        raise pfl.InputError("--output must name a file, such as base.safetensors.")
    config.check()
    set_precision(config.dtype)
    dataset = public_samples(config)
    print(f"data set   {dataset.describe()}", flush=True)
    began = time.perf_counter()
    facts = pretrain(config, dataset, output)
    seconds = time.perf_counter() - began
    print(f"base       {facts['origin']}, {facts['score']} on its test samples, {seconds:.0f} s")
    print(f"output     {output}")
    return 0


def public_samples(config: ExperimentConfig) -> pfl.Dataset:
    """Return the public part of the data set, or all of it."""
    dataset = data_flags.load_dataset(config.replace(public=None))
    if config.public is None:
        return dataset
    return pfl.data.split_public(dataset, config.public, config.partition_seed)[0]


def pretrain(config: ExperimentConfig, dataset: pfl.Dataset, output: Path) -> dict[str, Any]:
    """Train the network as the model of a single client, write it, and return the file's facts."""
    partition = pfl.make_partition("iid", dataset, 1, config.partition_seed)
    groups = (pfl.options.InputOptions, pfl.options.ModelOptions, pfl.options.LocalTraining)
    own = {name for group in groups for name in pfl.options.declared(group)} - set(CLIENTS)
    options = {name: x for name, x in config.federation_options().items() if name in own}
    options |= {"local_epochs": 1, "eval_batch_size": config.eval_batch_size}
    options |= {"devices": devices.prepare("1", 1, "auto")}
    federation = pfl.federate(dataset, partition, config.model, **options)
    result = pfl.simulate(
        pfl.make_algorithm("fedavg"),
        federation,
        config.epochs,
        seeds=(config.seed,),
        progress=True,
    )
    seen = dataset.train_x[partition.train.idx]
    measure, score = result.measure(), float(result.curve()[0, 0, -1])
    model = jax.tree.map(lambda leaf: leaf[0], result.final.models()["global"].model)
    part = f" ({config.public})" if config.public else ""
    facts = {
        "origin": f"trained on {len(seen):,} samples of {dataset.name}{part}",
        "data set": dataset.name,
        "public": config.public,
        "samples": len(seen),
        "classes": list(dataset.class_names) or dataset.num_classes,
        "network": config.model,
        "options of the network": config.model_options,
        "epochs": config.epochs,
        "optimizer": config.optimizer,
        "learning rate": config.learning_rate,
        "score": f"{measure.label} {measure.shown(measure.scale * score)}"
        + " %" * measure.fraction,
        "version": pfl.__version__,
    }
    head = None if config.with_head else federation.plan.head
    pfl.models.write_base(output, model, seen, facts, without=head)
    return facts
