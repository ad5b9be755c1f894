"""What is packaged, under which name; all else stands in `setup.cfg`.

The folder `experiments` is installed as `fedjax_pfl_experiments`: a package of its own name would
hide a user's folder `experiments`, or be hidden by it.
"""

from setuptools import find_packages, setup

FOLDER, INSTALLED = "experiments", "fedjax_pfl_experiments"
ours = find_packages(include=[FOLDER, f"{FOLDER}.*"])

setup(
    packages=[
        *find_packages(include=["fedjax_pfl", "fedjax_pfl.*"]),
        *(name.replace(FOLDER, INSTALLED, 1) for name in ours),
    ],
    package_dir={INSTALLED: FOLDER},
)
