"""Fuzzing: every malformed input is accepted with a valid result or refused in one clear sentence.

A target is a Hypothesis strategy and the function that is given its values. The tables of targets
are in `commands` (command lines), `files` (data, results, checkpoints), `interface` (Python calls)
and `whole_runs`; `verdict` judges how an input ended. The quick suite runs 2,000 inputs, `make
fuzz` 100,000, of which 200 are whole runs.
"""
