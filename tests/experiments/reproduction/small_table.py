"""A table of one paper on digits, as a file, and the command that reproduces it."""

from experiments import reproduce

TABLE = """
paper = "Mine"
table = "Table 1"
caption = "digits"
score = "best"
average = "samples"
flags = ["--compilation_cache="]
small = ["--num_clients=3", "--rounds=2", "--num_seeds=2", "--model=softmax"]
stand_in = ["--input_scaling=half"]
absent = ["nobody"]

[[column]]
name = "digits"
title = "digits"
preset = "digits_quick"

[[column]]
name = "cifar"
title = "CIFAR-10"
preset = "pfedla/table1_cifar10_10"
stand_in = true
small = ["--train_samples=40", "--local_epochs=1"]

[[row]]
title = "Local"
algorithm = "local"
paper = [90, 50]
std = [0.5, nan]

[[row]]
title = "DWA (1)"
algorithm = "feddwa"
settings = ["feddwa.top_k=1"]
paper = [91, 60]

[[row]]
title = "DWA"
algorithm = "feddwa"
paper = [80, nan]

[[row]]
title = "Nobody"
algorithm = "nobody"
paper = [99, 99]
"""


def call(tables, folder, *words):
    own = ["--table=mine/1", f"--tables={tables}", f"--output_dir={folder}"]
    return reproduce.main(["reproduce", *own, *words])
