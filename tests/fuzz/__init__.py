"""Fuzzing: every malformed input is accepted with a valid result or refused in one clear sentence.

A target is a Hypothesis strategy and the attack that is given its values. `commands` has those of
command lines and whole runs, `library` those of files and of Python calls.
"""
