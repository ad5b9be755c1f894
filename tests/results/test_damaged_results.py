"""A saved result that was damaged is refused in one sentence, whatever was done to it."""

import json
import os
import random
from dataclasses import replace

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.results.result_files import digest
from fedjax_pfl.utils.errors import LONGEST, InputError
from tests.experiments.written_runs import write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> pfl.Result:
    """A result of plausible numbers, as no simulation has to make it."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("made") / "r"
    write_run(folder, "fedavg", rng.uniform(size=(2, 4, 5)), [3, 4])
    result = pfl.Result.load(folder)
    losses = np.where(rng.uniform(size=(2, 1, 4, 5)) < 0.5, np.nan, 1.0)
    return replace(result, clients=result.clients | {"train_loss": losses})


@pytest.fixture
def saved(made, tmp_path):
    made.save(tmp_path / "r")
    return tmp_path / "r"


def refused(folder) -> str:
    with pytest.raises(InputError) as caught:
        pfl.Result.load(folder)
    text = str(caught.value)
    assert str(folder) in text and len(text) < LONGEST
    return text


def edited(folder, change) -> None:
    """Changes the JSON and its digest, as another program would write them."""
    plain = json.loads((folder / "result.json").read_text())
    change(plain)
    plain.pop("digest", None)
    with np.load(folder / "result.npz", allow_pickle=True) as file:  # some tests write objects
        plain["digest"] = digest(plain, dict(file))
    (folder / "result.json").write_text(json.dumps(plain))


def rewritten(folder, change) -> None:
    """Changes the arrays and the digest, as another program would write them."""
    with np.load(folder / "result.npz") as file:
        arrays = dict(file)
    change(arrays)
    np.savez(folder / "result.npz", **arrays)
    edited(folder, lambda plain: None)


def test_it_loads_as_it_was(made, saved):
    loaded = pfl.Result.load(saved)
    assert loaded.seeds == (3, 4) and loaded.blocks == ("head",)
    np.testing.assert_array_equal(loaded.clients["train_loss"], made.clients["train_loss"])
    edited(saved, lambda plain: None)
    assert pfl.Result.load(saved).table() == loaded.table()


def test_without_its_digest_it_is_damaged(saved):
    plain = json.loads((saved / "result.json").read_text())
    del plain["digest"]
    (saved / "result.json").write_text(json.dumps(plain))
    assert "result.json is damaged: it has no digest" in refused(saved)


@pytest.mark.parametrize("name", ["result.json", "result.npz"])
def test_every_flipped_byte_is_found_or_harmless(made, saved, name):
    """What loads in spite of it has every value as it was."""
    whole = (saved / name).read_bytes()
    lots, table = random.Random(0), pfl.Result.load(saved).table()
    result = 0
    for at in lots.sample(range(len(whole)), 150):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << lots.randrange(8)
        (saved / name).write_bytes(flipped)
        try:
            loaded = pfl.Result.load(saved)
        except InputError as error:
            result += 1
            assert name in str(error) and len(str(error)) < LONGEST
        else:
            assert loaded.table() == table
            assert loaded.summary() == replace(made, clients=loaded.clients).summary()
    assert result > 75


@pytest.mark.parametrize("name", ["result.json", "result.npz"])
@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b"PK\3"]
)
def test_other_content(saved, name, content):
    (saved / name).write_bytes(content)
    said = refused(saved)
    assert name in said and f"Delete the folder {saved}" in said


@pytest.mark.parametrize("name", ["result.json", "result.npz"])
def test_no_file_but_something_else(saved, name):
    (saved / name).unlink()
    assert name in refused(saved)
    (saved / name).mkdir()
    assert name in refused(saved)
    (saved / name).rmdir()
    (saved / name).symlink_to(saved / name)
    assert name in refused(saved)


@pytest.mark.parametrize("name", ["algorithm", "seeds", "num_clients", "blocks", "execution"])
def test_a_missing_field_is_named(saved, name):
    edited(saved, lambda plain: plain.pop(name))
    assert f"lacks {name!r}" in refused(saved)


def test_the_digest_is_of_the_shapes_too():
    shapes = ((), (1,), (1, 1))
    assert len({digest({}, {"sizes": np.ones(shape)}) for shape in shapes}) == 3


def test_a_changed_number_is_found(saved):
    text = (saved / "result.json").read_text()
    (saved / "result.json").write_text(
        text.replace('"seconds_per_round": 2.0', '"seconds_per_round": 0.5')
    )
    assert "was changed after it was written" in refused(saved)


def test_another_versions(saved):
    edited(saved, lambda plain: plain.update(novelty=1))
    assert "has the unknown 'novelty', perhaps as another version's" in refused(saved)


@pytest.mark.parametrize("name", ["other:thing", "settings", "algorithm"])
def test_an_unknown_array_is_refused(saved, name):
    rewritten(saved, lambda arrays: arrays.__setitem__(name, np.ones(3)))
    assert "is damaged" in refused(saved)


@pytest.mark.parametrize("name", ["copies_down", "client_ids"])
def test_a_missing_array_is_named(saved, name):
    rewritten(saved, lambda arrays: arrays.pop(name))
    assert f"lacks {name!r}" in refused(saved)


def test_a_swapped_file_of_another_result_is_found(made, saved, tmp_path):
    replace(made, scores={n: 0 * v for n, v in made.scores.items()}).save(tmp_path / "other")
    (saved / "result.npz").write_bytes((tmp_path / "other" / "result.npz").read_bytes())
    assert "was changed" in refused(saved)


def test_objects_are_never_unpickled(saved):
    with np.load(saved / "result.npz") as file:
        arrays = dict(file)
    np.savez(saved / "result.npz", **arrays | {"copies_up": np.array([None])})
    assert "result.npz can't be read" in refused(saved)


def test_a_result_is_written_whole_or_not_at_all(made, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    for broken in ("savez_compressed", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(np if broken.startswith("save") else os, broken, full)
            with pytest.raises(pfl.OutputError, match=r"r/result\.npz can't be written: No space"):
                made.save(tmp_path / "r")
        assert list((tmp_path / "r").iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "write_text", full)
        with pytest.raises(pfl.OutputError, match=r"r/result\.json can't be written: No space"):
            made.save(tmp_path / "r")
    assert list((tmp_path / "r").iterdir()) == []
    made.save(tmp_path / "r")
    assert pfl.Result.load(tmp_path / "r").rounds == 4


@pytest.mark.parametrize("given", ["a\0b", "~nobody_at_all/run"])
def test_a_folder_that_is_no_path(given):
    with pytest.raises(pfl.InputError, match="Folder of a result "):
        pfl.Result.load(given)


def test_a_folder_with_a_name_that_no_file_can_have():
    with pytest.raises(pfl.InputError, match=r"^No saved result can be read from xx"):
        pfl.Result.load("x" * 300)
