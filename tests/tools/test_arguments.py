"""Command lines of the tools that take paths."""

from importlib import import_module

import pytest

TOOLS = (
    "claims", "demo_picture", "leaderboard", "partition_gallery", "reproduced_pages",
    "settings_table",
)  # fmt: skip


@pytest.mark.parametrize("name", TOOLS)
def test_help_and_wrong_words_touch_nothing(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main = import_module(f"tools.{name}").main
    for words, code, shown in (
        (["--help"], 0, f"usage: python -m tools.{name}"),
        ([], 2, "the following arguments are required"),
        (["a", "b", "--supersede"], 2, "unrecognized arguments:"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([name, *words])
        out = capsys.readouterr()
        assert ended.value.code == code and shown in out.out + out.err
    assert not list(tmp_path.iterdir())
