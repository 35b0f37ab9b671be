from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

import pytest
from msgspec import Meta

from clawcli.config import resolve, to_dict
from clawcli.errors import ConfigError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    rate: Annotated[float, Meta(gt=0)] = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    input: str
    as_: Colour = Colour.RED
    merge: Literal["tree", "chain"] | None = None
    names: tuple[str, ...] = ()
    inner: Inner = field(default_factory=Inner)


def test_resolve_flag_beats_set_beats_file_beats_default():
    file = {"input": "file", "merge": "chain", "inner": {"rate": 2}}
    found = resolve(Config, {"input": "flag", "as_": None}, sets=["inner.rate=3"], file=file)
    assert found == Config(input="flag", merge="chain", inner=Inner(rate=3.0))


def test_resolve_set_values_are_json_or_text():
    found = resolve(Config, {"input": "x"}, sets=['names=["a", "b"]', "as_=blue"])
    assert (found.names, found.as_) == (("a", "b"), Colour.BLUE)


@pytest.mark.parametrize(
    ("flags", "sets", "sentence"),
    [
        ({}, [], "--set input is missing. Give it, or set it in --config."),
        ({"input": None}, [], "--input is missing. Give it, or set it in --config."),
        ({"input": "x", "as_": "green"}, [], "--as 'green' cannot be used"),
        ({"input": "x", "as_": "green"}, [], "Choose one of red, blue."),
        ({"input": "x", "merge": "none"}, [], "Choose one of chain, tree."),
        ({"input": "x"}, ["merge=up"], "--set merge 'up' cannot be used"),
        ({"input": "x"}, ["inner.rate=-1"], "--set inner.rate -1 cannot be used"),
        ({"input": "x"}, ["inner.rat=1"], "no setting inner.rat. Did you mean inner.rate?"),
        ({"input": "x"}, ["inner"], "has no '='"),
        ({"input": None}, ["input.a=1"], "--input {'a': 1} cannot be used"),
        ({"input": "x"}, ["other=1"], "There is no setting other"),
    ],
)
def test_resolve_wrong_setting_is_one_sentence(flags, sets, sentence):
    with pytest.raises(ConfigError) as caught:
        resolve(Config, flags, sets=sets)
    assert sentence in str(caught.value)


def test_to_dict_gives_plain_values_that_resolve_again():
    config = Config(input="x", as_=Colour.BLUE, names=("a",))
    assert resolve(Config, to_dict(config)) == config
