"""LEAF's JSON: FEMNIST and Shakespeare in the form that its preprocessing writes."""

import json

import numpy as np
import pytest

from experiments.cli import build, flags
from fedjax_pfl.data.partitions.importers import detect_tool, read_partition
from fedjax_pfl.data.partitions.rule_registry import make_partition
from fedjax_pfl.data.sources.leaf import LETTERS
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError


def write(folder, split, name, users, **more):
    """A file of LEAF's; `users` {user: (x, y)}."""
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    sizes = [len(y) for _, y in users.values()]
    content = {"users": list(users), "num_samples": sizes, "user_data": data, **more}
    (folder / split).mkdir(parents=True, exist_ok=True)
    (folder / split / f"{name}.json").write_text(json.dumps(content))


def image(seed):
    return (np.random.default_rng(seed).integers(0, 256, 784) / 255).tolist()


@pytest.fixture
def femnist(tmp_path):
    write(tmp_path, "train", "all_data_0", {
        "f0001_41": ([image(0), image(1), image(2)], [5, 61, 0]),
        "f0002_12": ([image(3), image(4)], [10, 36]),
    })  # fmt: skip
    write(tmp_path, "train", "all_data_1", {
        "f0003_00": ([image(5), image(6)], [1, 1]),
        "f0004_00": ([], []),
    })  # fmt: skip
    write(tmp_path, "test", "all_data_0", {
        "f0003_00": ([image(7)], [1]),
        "f0001_41": ([image(8)], [5]),
    })  # fmt: skip
    return tmp_path


def test_femnist(femnist):
    data = load_dataset(f"leaf:{femnist}")
    pixels = [np.rint(np.array(image(i)) * 255).reshape(28, 28, 1) for i in range(9)]
    np.testing.assert_array_equal(data.pool()[0], pixels)
    assert data.train_x.dtype == np.uint8
    assert data.labels.tolist() == [5, 61, 0, 10, 36, 1, 1, 1, 5]
    assert (data.num_classes, data.class_names[10], data.class_names[61]) == (62, "A", "z")
    users = ["f0001_41"] * 3 + ["f0002_12"] * 2 + ["f0003_00"] * 3 + ["f0001_41"]
    assert data.columns["user"].tolist() == users
    p = make_partition("by_column", data, None, 0)
    assert p.names == ("f0001_41", "f0002_12", "f0003_00")
    assert [p.client("train", i).tolist() for i in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [p.client("test", i).tolist() for i in range(3)] == [[8], [], [7]]


def test_shakespeare(tmp_path):
    texts = ["To be, or n", "o be, or no"]
    write(tmp_path / "data", "train", "a", {"HAMLET": (texts, ["o", "t"])}, hierarchies=["HAM"])
    write(tmp_path / "data", "train", "b", {"IAGO": (["\u00e9\u4e00        Z"], ["}"])})
    data = load_dataset("leaf", tmp_path)
    assert (data.vocab_size, data.num_classes, data.num_test) == (82, 80, 0)
    text = "".join(LETTERS[i - 2] for i in data.train_x[0])
    assert text == texts[0]
    assert data.train_x[2].tolist() == [1, 1, *[2 + LETTERS.index(" ")] * 8, 2 + LETTERS.index("Z")]
    assert [LETTERS[y] for y in data.train_y] == ["o", "t", "}"]
    assert data.name == tmp_path.name
    following = load_dataset("leaf", tmp_path, task="next_token")
    assert (following.task, following.vocab_size, following.num_outputs) == ("next_token", 82, 82)
    np.testing.assert_array_equal(following.train_x, data.train_x)
    np.testing.assert_array_equal(following.train_y[:, :-1], data.train_x[:, 1:])
    assert following.train_y[:, -1].tolist() == [2 + LETTERS.index(y) for y in "ot}"]


def test_other_numbers_stay_vectors(tmp_path):
    write(tmp_path, "train", "a", {"0": ([[0.5, -2.0]] * 2, [0.0, 1.0]), "1": ([[1, 2]], [1])})
    data = load_dataset("leaf", tmp_path)
    assert data.train_x.tolist() == [[0.5, -2], [0.5, -2], [1, 2]]
    assert data.columns["user"].tolist() == [0, 0, 1]
    for task, allowed in {"next_token": "'classification', as its", "x": "or 'next_token'"}.items():
        with pytest.raises(InputError, match=f"task of .* must be .*{allowed}.*, got '{task}'"):
            load_dataset("leaf", tmp_path, task=task)


def test_from_flags(femnist):
    for dataset in (f"{femnist}", f"leaf:{femnist}"):
        made = build.load_inputs(flags.parse(["run", f"--dataset={dataset}"]))
        assert made.partition.names == ("f0001_41", "f0002_12", "f0003_00")
        assert made.identity["dataset"] == "leaf"
    words = ["run", f"--dataset={femnist}", "--min_size=3", "--test_split=pooled"]
    assert build.load_inputs(flags.parse(words)).partition.sizes().tolist() == [3, 2]
    words = ["run", f"--dataset={femnist}", "--partition=iid", "--num_clients=2"]
    assert build.load_inputs(flags.parse(words)).partition.rule == "iid"


def test_a_folder_is_no_split(femnist):
    assert detect_tool(femnist) == "leaf"
    (femnist / "femnist/data").mkdir(parents=True)
    for split in ("train", "test"):
        (femnist / split).rename(femnist / "femnist/data" / split)
    for folder in (femnist / "femnist/data", femnist / "femnist"):  # as LEAF's folders lie
        assert detect_tool(folder) == "leaf"
        assert load_dataset("leaf", folder).name == "femnist"
    with pytest.raises(InputError, match="is a folder of LEAF, with samples and their"):
        read_partition(femnist / "femnist", load_dataset("digits"))


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ({"a": (["pic.jpg"], [1])}, r"Samples of user 'a' in .* got 'pic.jpg' with 1"),
        ({"a": (["abc", "ab"], ["d", "d"])}, "must be texts of 3 letters with one of LEAF's 80 "),
        ({"a": (["abc"], ["\u00e9"])}, "must be texts of 3 letters"),
        ({"a": ([[1, 2], [1]], [0, 1])}, r"must be vectors of numbers .* got \[1, 2\] with 0"),
        ({"a": ([[1, 2]], [0.5])}, "must be vectors of numbers with whole labels"),
        ({"a": ([[1, 2]], [0]), "b": ([[1]], [0])}, "user 'b' .* must be those of the first user'"),
        ({"a": ([[1, 2]], [0, 1])}, "has no samples x and labels y, as many of each, for user 'a'"),
        ({"a": ([], [])}, "Users with samples in .* must be at least 1, got 0"),
    ],
)
def test_other_forms(tmp_path, users, message):
    write(tmp_path, "train", "a", users)
    with pytest.raises(InputError, match=message):
        load_dataset("leaf", tmp_path)


def test_no_folder_of_leafs(tmp_path):
    with pytest.raises(InputError, match=r"has no train/\*\.json"):
        load_dataset("leaf", tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text("{}")
    with pytest.raises(InputError, match="isn't a file of LEAF's: it has no users with user_data"):
        load_dataset("leaf", tmp_path)


def test_all_users_are_listed(tmp_path):
    rows = ([[1, 2]], [0])
    write(tmp_path, "train", "a", {"one": rows, "two": rows})
    path = tmp_path / "train" / "a.json"
    path.write_text(path.read_text().replace('["one", "two"]', '["one"]'))
    with pytest.raises(InputError, match=r"users in .*a.json must be all those .*\['two'\]"):
        load_dataset("leaf", tmp_path)


def test_users_do_not_merge(tmp_path):
    rows = ([[1, 2]], [0])
    write(tmp_path, "train", "a", {"one": rows, "two": rows})
    write(tmp_path, "train", "b", {"one": rows})
    with pytest.raises(InputError, match=r"user 'one' in .*b.json must be listed once"):
        load_dataset("leaf", tmp_path)
    for other in ("two\0", " two"):
        write(tmp_path, "train", "b", {other: rows})
        with pytest.raises(InputError, match="must be named without spaces at the ends"):
            load_dataset("leaf", tmp_path)
    write(tmp_path, "train", "b", {"three": rows})
    write(tmp_path, "test", "a", {"one": rows})
    assert load_dataset("leaf", tmp_path).num_test == 1  # the same user
