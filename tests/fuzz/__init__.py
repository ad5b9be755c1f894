"""Hostile inputs: each must be accepted, or refused in one clear sentence.

`make fuzz` runs 100,000 inputs and counts how they ended; the quick suite runs 2,000 of them.

A target (`target.py`) is a Hypothesis strategy and a function under attack. `commands.py` attacks
command lines, `interface.py` the Python interface, `files.py` data files of every format, and
`folders.py` results and checkpoints; `whole_runs.py` makes whole runs with odd settings. `guard.py`
judges how an input ended.
"""
