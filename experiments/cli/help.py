"""What `experiments.run --help` prints."""

import textwrap

from absl import flags

from .flags import GROUPS
from .shell import meaning
from .start import called

USAGE = f"""\
Compares personalized federated learning algorithms and writes the results.

  {called("run")} --algorithms=local,fedavg,feddwa --dataset=digits --alpha=0.1
  {called("run")} --preset=digits_quick --rounds=20

A later flag wins over an earlier one, also over those of a --preset or --flagfile."""


def help_text(values: flags.FlagValues) -> str:
    """Our flags, group by group; with --helpfull those of the libraries too."""
    parts = [USAGE]
    for name, heading in GROUPS.items():
        lines = [f"\n{heading}:"]
        for flag in values.get_flags_for_module(name):
            label = (
                f"  --[no]{flag.name}" if flag.boolean and name != "help" else f"  --{flag.name}"
            )
            gap = "\n" + " " * 26 if len(label) > 24 else " " * (26 - len(label))
            text = textwrap.wrap(meaning(flag, "the rule's" if name == "rule" else "none"), 72)
            lines.append(label + gap + ("\n" + " " * 26).join(text))
        parts.append("\n".join(lines))
    if values["helpfull"].value:
        parts.append(f"\nFlags of the libraries:\n{flags.FLAGS.get_help()}")
    parts.append(
        "\n  --preset=NAME           read the flags of a preset (--list shows them)"
        "\n  --flagfile=FILE         read flags from a file, one on each line"
        "\n  --settings_from=DIR     run a sweep's algorithms, each with its chosen settings"
    )
    return "\n".join(parts)
