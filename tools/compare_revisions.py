"""Comparison of two revisions' results: `python -m tools.compare_revisions COMMIT`.

Simulates every algorithm for three rounds with the package of COMMIT and with that of the working
tree, side by side on this machine, and compares measurements, states and models leaf by leaf. One
case each has host state, vmap, two devices, a sweep and stragglers; `metrics.csv` of a command
is compared as text. The exit code is 1 where a difference is above `--tolerance`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("metrics", "states", "models")
COMMAND = (
    "-m experiments.run --dataset=digits --model=softmax --num_clients=5 --rounds=3 --num_seeds=2 "
    "--participation=0.6 --algorithms=fedavg,feddwa,cwfedavg --devices=1 --compilation_cache= "
    "--output_dir={out}"
)


def same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Return whether both have the same leaves, in any order."""

    def leaves(arrays: dict[str, np.ndarray]) -> Counter:
        return Counter((a.shape, str(a.dtype), a.tobytes()) for a in arrays.values())

    return leaves(one) == leaves(other)


def difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Return the largest difference of two lists of leaves, relative to a leaf's largest number."""
    if [a.shape for a in one.values()] != [a.shape for a in other.values()]:
        return np.inf
    most = 0.0
    for a, b in zip(one.values(), other.values(), strict=True):
        a, b = a.astype(np.float64), b.astype(np.float64)
        if not np.array_equal(np.isnan(a), np.isnan(b)):
            return np.inf
        scale = max(np.nanmax(np.abs(a), initial=0), 1e-30)
        most = max(most, float(np.nanmax(np.abs(a - b), initial=0) / scale))
    return most


def compared(old: Path, new: Path) -> dict[str, dict[str, float]]:
    """Return each part's difference (0 for equal bits, infinity for a failure) by case."""
    names = {path.stem for folder in (old, new) for path in folder.iterdir()}
    result = {}
    for name in sorted(names):
        files = [folder / f"{name}.npz" for folder in (old, new)]
        if not all(path.exists() for path in files):
            result[name] = dict.fromkeys(PARTS, np.inf)
            continue
        result[name] = {}
        for part in PARTS:
            one, other = (
                {k: v for k, v in np.load(path).items() if k.startswith(f"{part}/")}
                for path in files
            )
            result[name][part] = 0.0 if same_bits(one, other) else difference(one, other)
    return result


def begin(root: Path, out: Path, names: str) -> subprocess.Popen:
    """Start the driver and the command with the package in `root`."""
    environment = {**os.environ, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_ENABLE_X64", None)
    environment["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # compiles in half the time
    driver = f"{sys.executable} {ROOT / 'tools' / 'compare_driver.py'} {out}"
    command = COMMAND.format(out=out.parent / f"{out.name}-run")
    script = (
        f"{driver} {names} 1; JAX_NUM_CPU_DEVICES=2 {driver} {names} 2; "
        f"{sys.executable} {command} > {out.parent / out.name}.log 2>&1"
    )
    return subprocess.Popen(["sh", "-c", script], cwd=root, env=environment)


def run_files(out: Path) -> dict[str, str]:
    """Return the text of every metrics.csv of the command, by algorithm."""
    folder = out.parent / f"{out.name}-run"
    return {path.parent.name: path.read_text() for path in folder.glob("*/metrics.csv")}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.compare_revisions", description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the working tree")
    parser.add_argument("--algorithms", default="all", help="names, with commas between them")
    parser.add_argument("--tolerance", type=float, default=0.0, help="relative; 0 means bits")
    return parser


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        old, outputs = Path(folder) / "revision", [Path(folder) / name for name in ("old", "new")]
        for path in (old, *outputs):
            path.mkdir()
        archive = Path(folder) / "revision.tar"
        if subprocess.call(["git", "-C", str(ROOT), "archive", "-o", str(archive), args.commit]):
            return 2  # git has said why
        subprocess.run(["tar", "-x", "-C", str(old), "-f", str(archive)], check=True)
        roots = (old, args.tree.resolve())
        for one in [begin(r, o, args.algorithms) for r, o in zip(roots, outputs, strict=True)]:
            one.wait()
        found = compared(*outputs)
        texts = [run_files(out) for out in outputs]
    print(f"{'case':22}" + "".join(f"{part:>12}" for part in PARTS))
    for name, parts in found.items():
        print(f"{name:22}" + "".join(f"{_shown(parts[part]):>12}" for part in PARTS))
    alike = bool(texts[0]) and texts[0] == texts[1]
    print(f"metrics.csv of a command: {'the same text' if alike else 'differs'}")
    worst = max((max(parts.values()) for parts in found.values()), default=np.inf)
    return 0 if worst <= args.tolerance and (alike or args.tolerance > 0) else 1


def _shown(value: float) -> str:
    return "same bits" if value == 0 else "failed" if value == np.inf else f"{value:.1e}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
