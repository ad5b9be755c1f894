"""A split that the command line names takes the place of a flagfile's, with its options.

A preset's rule has options that another rule or a file does not take; these would be refused.
"""

from collections.abc import Mapping

import absl.flags

import fedjax_pfl as pfl

from . import flagfiles

GROUPS = ("rule", "options")  # flags of a rule's options, of a run and of `experiments.partition`


def _options(values: absl.flags.FlagValues) -> set[str]:
    return {flag.name for group in GROUPS for flag in values.get_flags_for_module(group)}


def _leave_out(values: absl.flags.FlagValues, names: set[str]) -> None:
    """Takes back flags of those names that flagfiles alone gave."""
    for name in names & flagfiles.filed(values):
        values[name].unparse()


def replace(values: absl.flags.FlagValues, called: Mapping[str, str]) -> None:
    """Takes back what flagfiles say on a split that --partition or --partition_file replaces.

    Flags of the command line stay, and so do options that the new rule takes, too.

    Args:
      values: flags; changed in place.
      called: flags of a rule's options that have another name than the option.
    """
    filed = flagfiles.filed(values)
    typed = {name for name in ("partition", "partition_file") if values[name].present} - filed
    if typed == {"partition_file"}:
        _leave_out(values, _options(values) | {"partition", "num_clients"})
    elif typed == {"partition"}:
        rule = flagfiles.value_of(values, "partition")
        options = pfl.data.rule_options(rule) if rule in pfl.data.RULES else ()
        taken = {called.get(name, name) for name in options}
        _leave_out(values, (_options(values) - taken) | {"partition_file"})


def give_way(values: absl.flags.FlagValues) -> None:
    """Takes back a flagfile's split where --dataset on the command line brings one of its own.

    Any flag of a split on the command line itself asks for that split; then nothing is changed.

    Args:
      values: flags; changed in place.
    """
    filed, split = flagfiles.filed(values), _options(values) | {"partition", "partition_file"}
    if "dataset" not in filed and not any(values[name].present for name in split - filed):
        _leave_out(values, split | {"num_clients"})
