"""Names of layers of PFLlib's and torchvision's networks, and of those here that compute the same.

PFLlib's are the classes of its `trainmodel/models.py`, whole or split in `base` and `head`.
"""

from collections.abc import Collection, Mapping
from typing import TypeVar

from fedjax_pfl.utils.errors import InputError

T = TypeVar("T")
# Prefixes that DistributedDataParallel, Lightning and torch.compile add to all names.
WRAPPERS = ("module.", "model.", "_orig_mod.")
# The network's layer for each layer there.
PFLLIB = (
    {"conv1.0": "conv_0", "conv2.0": "conv_1", "fc1.0": "fc", "fc": "head"},  # FedAvgCNN
    {"conv1": "conv_0", "conv2": "conv_1", "fc1": "fc", "fc": "head"},  # its earlier form
    {"conv1": "conv_0", "conv2": "conv_1", "fc1": "fc_0", "fc2": "fc_1", "fc": "head"},  # CifarNet
    {"fc1": "fc_0", "fc": "head"},  # DNN
    {"fc1": "fc_0", "fc2": "head"},  # FedAvgMLP
    {"fc": "head"},  # Mclr_Logistic
    {"encoder.0": "fc_0", "encoder.2": "fc_1", "encoder.4": "fc_2", "fc": "head"},  # AmazonMLP
    {"embedding": "embedding", "fc1": "fc", "fc": "head"},  # fastText
    {"embedding": "embedding", "conv1.0": "conv_0", "conv2.0": "conv_1", "conv3.0": "conv_2",
     "fc": "head"},  # TextCNN
)  # fmt: skip
# Layers of a network that computes something else with the same layers as one here.
LSTM_NET = {"embedding", "lstm.l0", "lstm.l1", "fc"}
BLOCK = {"conv1": "first/conv", "{}1": "first/{}", "conv2": "second/conv", "{}2": "second/{}"}
SHORTCUT = {"downsample.0": "shortcut/conv", "downsample.1": "shortcut/{}"}


def resnet_18(norm: str) -> dict[str, str]:
    """Return torchvision's names of ResNet-18; `norm` is "bn", or "gn" of group normalization."""
    table = {"conv1": "stem/conv", "bn1": f"stem/{norm}", "fc": "head"}
    for block in range(8):
        stage, place = divmod(block, 2)
        shortcut = SHORTCUT if stage and not place else {}
        for there, here in (BLOCK | shortcut).items():
            name = f"layer{stage + 1}.{place}.{there.format('bn')}"
            table[name] = f"block_{block}/{here.format(norm)}"
    return table


TABLES = (*PFLLIB, resnet_18("bn"), resnet_18("gn"))


def unwrapped(named: Mapping[str, T]) -> dict[str, T]:
    """Return values under their names without the prefixes of `WRAPPERS` that all names have."""
    result = dict(named)
    while prefix := next((one for one in WRAPPERS if all_begin(result, (one,))), None):
        result = {name.removeprefix(prefix): value for name, value in result.items()}
    return result


def plain_name(name: str, known: Collection[str]) -> str:
    """Return a name that a user gave, without the prefixes of `WRAPPERS` if they were removed."""
    while name not in known and name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name


def all_begin(names: Collection[str], prefixes: tuple[str, ...]) -> bool:
    return bool(names) and all(name.startswith(prefixes) for name in names)


def known_pairs(theirs: Collection[str], own: Collection[str]) -> dict[str, str]:
    """Return the network's layer for each of PyTorch's, if a table lists both; {} otherwise.

    Some of PyTorch's layers may be missing, such as a classifier.

    Raises:
      InputError: names of PFLlib's LSTMNet.
    """
    plain = {layer: layer for layer in theirs}
    if all_begin([f"{layer}." for layer in theirs], ("base.", "head.")):  # PFLlib's BaseHeadSplit
        plain = {layer: "fc" if layer == "head" else layer[len("base.") :] for layer in theirs}
    if set(plain.values()) == LSTM_NET:
        raise InputError(
            "These are the names of PFLlib's LSTMNet, which has a ReLU before its last layer, and "
            "no network here has: give names={'fc': 'head'} if yours has none."
        )
    for table in TABLES:
        if set(table.values()) == set(own) and set(plain.values()) <= set(table):
            return {layer: table[name] for layer, name in plain.items()}
    return {}
