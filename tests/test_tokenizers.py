import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clawcli.errors import DataError, NotFoundError
from clawcli.store import tokenizers


@pytest.fixture(scope="module")
def tiny():
    return tokenizers.load("tiny")


def edited(tiny, path, change):
    value = json.loads(tiny.json_path.read_text())
    change(value)
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps(value))
    return tokenizers.load(str(path))


def test_load_directory_file_and_name_are_one_vocabulary(tiny, tmp_path):
    tiny.to_file(tmp_path / "tokenizer.json")
    for place in (tmp_path, tmp_path / "tokenizer.json"):
        assert tokenizers.load(str(place)).vocab_hash == tiny.vocab_hash


def test_encode_then_decode_gives_any_text_back(tiny):
    text = "naïve 你好 🤗\n  def f(x):\treturn x+1 <|im_end|>\n\n<|im_start|>"
    ids = tiny.encode(text)
    assert ids.dtype == "int32"
    assert ids.max() < tiny.vocab_size
    assert tiny.decode(ids) == text


def test_vocab_hash_changes_with_a_token_and_with_what_is_special(tiny, tmp_path):
    def swap(value):
        vocab = value["model"]["vocab"]
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]

    def unmark(value):
        value["added_tokens"][0]["special"] = False

    hashes = {
        tiny.vocab_hash,
        edited(tiny, tmp_path / "swapped", swap).vocab_hash,
        edited(tiny, tmp_path / "unmarked", unmark).vocab_hash,
    }
    assert len(hashes) == 3


def test_vocab_hash_survives_saving_by_transformers(tiny, tmp_path):
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(tiny.directory).save_pretrained(tmp_path)
    assert tokenizers.load(str(tmp_path)).vocab_hash == tiny.vocab_hash


def test_load_saved_truncation_cuts_nothing(tiny, tmp_path):
    def truncate(value):
        value["truncation"] = {
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        }

    assert len(edited(tiny, tmp_path / "cut", truncate).encode("one two three four")) > 2


def test_load_unknown_name_says_what_was_tried(tmp_path):
    with pytest.raises(NotFoundError, match=r"no hub id in the local cache.*tiny"):
        tokenizers.load("nobody/nothing")


def test_load_directory_without_file_says_how_to_make_one(tmp_path):
    with pytest.raises(NotFoundError, match=r"has no tokenizer\.json.*save_pretrained"):
        tokenizers.load(str(tmp_path))


def test_load_broken_file_is_a_data_error(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"no readable tokenizer\.json"):
        tokenizers.load(str(tmp_path))


def test_load_hub_id_is_found_in_the_local_cache(tiny, tmp_path):
    snapshot = tmp_path / "models--some--model" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0123")
    shutil.copy(tiny.json_path, snapshot / "tokenizer.json")
    # the cache's place is read when the package is imported, hence a process of its own
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from clawcli.store import tokenizers; print(tokenizers.load('some/model').vocab_hash)",
        ],
        env={"HF_HUB_CACHE": str(tmp_path), "PATH": "", "HOME": str(tmp_path)},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == tiny.vocab_hash
