"""Hostile input, by the thousands: whatever is given is taken, or refused in one clear sentence.

`make fuzz` runs 100,000 inputs in some 15 minutes and counts how each ended; `test_fuzz.py` runs
a seeded few thousand of them in the quick suite.

A target (`target.py`) is a strategy that makes inputs and a function under attack. `commands.py`
attacks command lines, `interface.py` the Python interface, `files.py` data files of every format,
`folders.py` results and checkpoints. `guard.py` judges how an input ended, `workers.py` runs
batches in processes that survive what kills them, `__main__.py` deals out and counts.

Every input is plain data: words of a command line, text of a Python call, bytes of a file. So
a failure is kept as it was made, and can be replayed after the generators have changed.
"""
