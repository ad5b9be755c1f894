"""Registry of networks."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from fedjax_pfl.models.projection import Projected
from fedjax_pfl.utils import aliases, name_matching
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.conversions import keyword_defaults, number
from fedjax_pfl.utils.errors import InputError, find_name, require, require_whole, unknown_name
from fedjax_pfl.utils.registries import F, registering

MODELS: dict[str, Callable[..., Any]] = {}
INITIALIZERS = ("torch", "flax")
PROJECTION = "projection"  # option of every network
PER_TOKEN = "per_token"  # option of networks for texts: one output for each token


@checked
def register_model(name: str) -> Callable[[F], F]:
    """Return a decorator that registers a network by name.

    The function is `factory(input_shape, num_classes, initializer, **options)` and returns a model
    for `federate`, such as a linen module, without making arrays. Keyword-only parameters are the
    network's options. A network with the option `vocab_size` takes token ids.

    Raises:
      InputError: the name is another network's.
    """

    def entry(factory: Callable[..., Any]) -> Callable[..., Any]:
        allowed = "a function (input_shape, num_classes, initializer) -> model"
        require(not isinstance(factory, type), f"model {name!r}", "a class", allowed)
        return factory

    return registering("model", MODELS, name, entry)


@checked
def make_model(
    name: str,
    input_shape: Sequence[int],
    num_classes: int,
    initializer: str = "torch",
    **options: Any,
) -> nn.Module:
    """Make a network by name for samples of `input_shape`.

    Args:
      name: one of `MODELS`, in any spelling ("CNN" is "cnn").
      input_shape: shape of one sample: [height, width, channels], [d], or [length] for texts.
      num_classes: C.
      initializer: "torch" or "flax".
      **options: options of the network, such as hidden=512. `projection=256` projects its features,
        see `Projected`. Every network accepts `vocab_size`, the data set's number of token ids, or
        None if samples aren't texts; and `per_token`, whether there is an output for each token, as
        the task next_token needs.

    Raises:
      InputError: unknown name or option, or a network that can't take such samples.
    """
    name = name_matching.canonical_name(name, MODELS, aliases.MODELS)
    if name not in MODELS:
        raise unknown_name("model", name, MODELS, user_defined=True)
    initializer = find_name("initializer", initializer, INITIALIZERS)
    accepted = options_of(name)
    vocab_size, per_token = options.pop("vocab_size", None), options.pop(PER_TOKEN, False)
    if ("vocab_size" in accepted) != (vocab_size is not None):
        texts = [other for other in MODELS if "vocab_size" in options_of(other)]
        raise InputError(
            f"Model {name!r} takes texts (token ids with a vocab_size); the data set holds none."
            if vocab_size is None
            else f"Model {name!r} takes no texts. Use {' or '.join(map(repr, texts))}."
        )
    if per_token and PER_TOKEN not in accepted:
        fit = [other for other in MODELS if PER_TOKEN in options_of(other)]
        raise InputError(
            f"Model {name!r} has one output for a text; the task next_token needs one for each "
            f"token. Use {' or '.join(map(repr, fit))}."
        )
    for option in options:
        if option not in accepted or option == PER_TOKEN:
            raise unknown_name(f"option of model {name!r}", option, accepted)
    if vocab_size is not None:
        options["vocab_size"] = vocab_size
    if per_token:
        options[PER_TOKEN] = True
    width = options.pop(PROJECTION, None)
    network = MODELS[name](tuple(input_shape), num_classes, initializer, **options)
    if width is None:
        return network
    return Projected(network, require_whole(PROJECTION, width, 1), initializer)


def options_of(name: str) -> tuple[str, ...]:
    """Return the names of the options of a network."""
    return (*keyword_defaults(MODELS[name]), PROJECTION)


def check_images(name: str, input_shape: tuple[int, ...], smallest: int) -> None:
    """Raise `InputError` unless samples are images of at least `smallest` pixels per side."""
    if len(input_shape) != 3 or min(input_shape[:2]) < smallest:
        first = len(input_shape) == 3 and input_shape[0] in (1, 3) and min(input_shape[1:]) > 3
        turned = "If channels come first, x.transpose(0, 2, 3, 1) puts them last."
        raise InputError(
            f"Model {name!r} takes images [height, width, channels] of at least "
            f"{smallest}x{smallest} pixels; the data set's samples have the shape {input_shape}. "
            + (turned if first else "Use 'mlp'.")
        )


def check_dropout(rate: Any) -> float:
    """Return a dropout rate as a number in [0, 1)."""
    dropout = number("dropout", rate, "in [0, 1)", high=1)
    require(np.float32(dropout) < 1, "dropout", rate, "in [0, 1)")
    return dropout
