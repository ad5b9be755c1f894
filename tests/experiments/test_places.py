"""Places and names that can't be are refused before anything is made."""

import pytest

import fedjax_pfl as pfl
from experiments import compare, partition, run, sweep
from tests.experiments.small_runs import SMALL, error_line

WORDS = ("--algorithms=local,feddwa", *SMALL)


@pytest.mark.costly
def test_output_folders_that_can_not_be(tmp_path, capsys):
    """Said before anything is made, by all scripts that write."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("mine")
    places = {
        tmp_path / "link": "it is a link to",
        tmp_path / ("x" * 300): "File name too long",
        tmp_path / ("x" * 252): "names have at most 249 bytes",
        tmp_path / "file" / "x": "is not a writable folder",
        "~nobody-of-that-name/x": "there is no such home folder",
        tmp_path / "a\0b": "must be a path in UTF-8 without NUL",
    }
    before = sorted(tmp_path.iterdir())
    for place, why in places.items():
        output = f"--output_dir={place}"
        for main, words in (
            (run.main, ["run", *WORDS]),
            (sweep.main, ["sweep", *WORDS, "--grid=learning_rate=0.1,0.2"]),
            (compare.main, ["compare", "--runs=nowhere"]),
            (partition.main, ["partition", "--dataset=digits"]),
        ):
            assert main([*words, output]) == 2, (place, main)
            sentence = error_line(capsys)
            assert why in sentence and "error: --output_dir " in sentence, (place, main)
            assert len(sentence) < 700
    assert sorted(tmp_path.iterdir()) == before


def test_names_too_long_for_a_folder(tmp_path, monkeypatch, capsys):
    """Of algorithms and of settings; as long as what stands before them meanwhile leaves."""
    name = "m" * 250
    monkeypatch.setitem(pfl.core.ALGORITHMS, name, pfl.core.ALGORITHMS["fedavg"])
    output = f"--output_dir={tmp_path / 'out'}"
    assert run.main(["run", *WORDS[1:], f"--algorithms={name}", output]) == 2
    assert "has 250 bytes, and names of folders have at most 249" in error_line(capsys)
    words = [*WORDS[1:], "--algorithms=fedavg", f"--grid=partition_file={'p' * 250}.npz"]
    assert sweep.main(["sweep", *words, output]) == 2
    assert len(error_line(capsys)) < 700
    assert not (tmp_path / "out").exists()
