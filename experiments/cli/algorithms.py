"""The algorithms of a comparison: their hyperparameters and their own local training."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import fedjax_pfl as pfl
from fedjax_pfl.utils.errors import shown, unknown_hyperparameter

from .parsing import last_of_each

OWN = pfl.options.SETTABLE  # options of local training that --set takes


def parse_algorithms(names: Sequence[str], settings: Sequence[str]) -> dict[str, pfl.Algorithm]:
    """Return the algorithms of a comparison with their hyperparameters, in the order given."""
    made = {}
    for name, values in _by_algorithm(names, settings).items():
        own = {key: value for key, value in values.items() if key not in OWN}
        fields = pfl.core.ALGORITHMS[name].__dataclass_fields__
        for key in own:
            if key not in fields:
                raise unknown_hyperparameter(name, key, {*fields, *OWN})
        made[name] = pfl.make_algorithm(name, own)
    return made


def own_training(
    names: Sequence[str], settings: Sequence[str], common: pfl.LocalTraining
) -> dict[str, dict[str, Any]]:
    """Return options of local training that --set gives to single algorithms.

    Args:
      names, settings: as of `parse_algorithms`.
      common: the values of the flags.

    Returns:
      The values by option, for each algorithm; {} where the flags hold.

    Raises:
      InputError: an invalid value.
    """
    result: dict[str, dict[str, Any]] = {}
    for name, values in _by_algorithm(names, settings).items():
        options = {
            key: replace(OWN[key], name=f"{name}.{key}").read(text)
            for key, text in values.items()
            if key in OWN
        }
        result[name] = {}
        if not options:
            continue
        try:
            after = _settable(common.changed(**options))
        except pfl.InputError as error:
            raise pfl.InputError(
                f"With {' '.join(setting_flags(name, options))}: {error}"
            ) from None
        differ = {key for key, value in after.items() if value != getattr(common, key)}
        if "local_steps" in differ and after["local_steps"] is None:
            differ.add("local_epochs")  # which replaced the steps
        result[name] = {key: value for key, value in after.items() if key in differ}
    return result


def _settable(training: pfl.LocalTraining) -> dict[str, Any]:
    return {name: getattr(training, name) for name in OWN}


def remarked(result: pfl.Result, own: Mapping[str, Any]) -> pfl.Result:
    """Return the result with a remark on the algorithm's own local training, if any.

    Args:
      own: its options, see `own_training`.
    """
    words = [f"trained with its own {describe_own_training(own)}"] if own else []
    return replace(result, remarks=(*result.remarks, *words))


def describe_own_training(own: Mapping[str, Any]) -> str:
    """Format an algorithm's own options of local training, such as "learning rate 0.3"."""
    changed = {key: value for key, value in own.items() if value is not None}
    return ", ".join(f"{key.replace('_', ' ')} {_text(value)}" for key, value in changed.items())


def setting_flags(algorithm: str, own: Mapping[str, Any]) -> list[str]:
    """Return the words `--set=...` that give an algorithm these options."""
    return [f"--set={algorithm}.{key}={value}" for key, value in own.items() if value is not None]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def canonical_names(
    names: Sequence[str], words: Sequence[str], typed: Collection[str], given: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Return (names of algorithms, words of --set) with canonical names.

    Names that stand for no algorithm stay as they are; `parse_algorithms` refuses them. A --set of
    a flagfile for an algorithm that the run does not have is left out, so that a preset can hold
    settings of many. One of the command line stays and is refused: it is likely a slip. A --set of
    a flagfile for an option of local training that the command line itself gives is left out, too.

    Args:
      names, words: values of --algorithms and --set.
      typed: words of --set on the command line itself.
      given: names of options that the command line itself gives, as flags or in a --grid.
    """
    chosen = [_ours(name.strip()) for name in names]
    others = pfl.core.ALGORITHMS.keys() - chosen
    replaced = {name for name in given if name.rpartition(".")[2] in OWN}
    replaced |= {name.replace("local_epochs", "local_steps") for name in replaced}
    kept = []
    for word in words:
        ours = setting_of(word)
        name = ours.partition("=")[0].strip()
        algorithm, _, key = name.rpartition(".")
        if word in typed or not (algorithm in others or {name, key} & replaced):
            kept.append(ours)
    return chosen, last_of_each(kept)


def setting_of(word: str) -> str:
    """Return a word such as "FedDWA.top_k=5" with the algorithm's canonical name."""
    target, equals, value = word.partition("=")
    name, dot, key = target.rpartition(".")
    return f"{_ours(name.strip())}{dot}{key}{equals}{value}" if dot else word


def _ours(name: str) -> str:
    try:
        return pfl.core.algorithm_name(name)
    except pfl.InputError:
        return name


def _by_algorithm(names: Sequence[str], settings: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the values of --set for each algorithm, by name."""
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise pfl.InputError("--algorithms must name at least one algorithm; --list shows them.")
    chosen: dict[str, dict[str, str]] = {}
    for name in names:
        name = pfl.core.algorithm_name(name)
        if name in chosen:
            raise pfl.InputError(f"--algorithms names {name!r} twice: each algorithm runs once.")
        chosen[name] = {}
    for setting in settings:
        target, equals, value = setting.partition("=")
        name, dot, key = target.strip().rpartition(".")
        if not (equals and dot and name and key and value.strip()):
            raise pfl.InputError(
                f"--set must read ALGORITHM.HYPERPARAMETER=VALUE, such as feddwa.top_k=5, got "
                f"{shown(setting)}."
            )
        if name not in pfl.core.ALGORITHMS:
            name = pfl.core.algorithm_name(name, chosen, "algorithm in --set")
        if name not in chosen:
            raise pfl.InputError(
                f"--set={setting} is for {name!r}, which is not in this comparison: --algorithms "
                f"has {', '.join(chosen)}."
            )
        if key in chosen[name]:
            raise pfl.InputError(f"--set gives {name}.{key} twice.")
        chosen[name][key] = value.strip()
    return chosen
