import json
from typing import Any

import msgspec
import pytest

from clawcli.ingest.formats.layers import Layer, Memo


def read(layer, value):
    return layer.read(json.dumps(value).encode())


def test_read_unknown_keys_are_learned_once_and_read_in_every_record():
    layer = Layer(model=Any)
    for number in range(3):
        found = read(layer, {"model": "m", "seed": number, "not a name": [number]})
        assert layer.rest(found) == {"seed": number, "not a name": [number]}
    assert found.model == "m"
    assert layer.rest(read(layer, {"model": "m"})) == {}


def test_read_keys_of_layers_below_are_learned_too():
    body = Layer(messages=list[msgspec.Raw] | None)
    request = Layer(messages=list[msgspec.Raw] | None, body=body)
    record = Layer(request=request)
    found = read(record, {"request": {"body": {"messages": [1, 2], "seed": 7}, "url": "u"}, "x": 1})
    assert [bytes(raw) for raw in found.request.body.messages] == [b"1", b"2"]
    assert body.rest(found.request.body) == {"seed": 7}
    assert request.rest(found.request) == {"url": "u"}
    assert record.rest(found) == {"x": 1}


@pytest.mark.parametrize("key", ['a"b', "back\\slash", "new\nline", "\0", '"', "\x7f6", "\x7f61"])
def test_read_any_key_is_read_and_harms_no_later_record(key):
    body = Layer(model=Any)
    layer = Layer(body=body)
    found = read(layer, {key: 1, "body": {"model": "m", key: [2]}, "x": 3})
    assert layer.rest(found) == {key: 1, "x": 3}
    assert (found.body.model, body.rest(found.body)) == ("m", {key: [2]})
    found = read(layer, {"body": {"model": "n", "new": 4}})
    assert (found.body.model, body.rest(found.body), layer.rest(found)) == ("n", {"new": 4}, {})


def test_read_layer_may_be_null_missing_or_text():
    layer = Layer(request=Layer(model=Any))
    assert read(layer, {"request": None}).request is None
    assert read(layer, {}).request is None
    assert read(layer, {"request": '{"model":1}'}).request == '{"model":1}'


@pytest.mark.parametrize("value", [[1], 7, {"messages": "text"}, {"messages": {}, "new": 1}])
def test_read_another_shape_is_a_validation_error(value):
    with pytest.raises(msgspec.ValidationError):
        read(Layer(messages=list[msgspec.Raw] | None), value)


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity"])
def test_read_numbers_that_json_has_not_are_no_matter_of_shape(number):
    layer = Layer(model=Any)
    for raw in (f'{{"model": {number}}}', f'{{"new": {number}}}'):
        with pytest.raises(msgspec.DecodeError) as raised:
            layer.read(raw.encode())
        assert not isinstance(raised.value, msgspec.ValidationError)


def test_read_keys_that_are_data_do_not_pile_up():
    layer = Layer(model=Any)
    for number in range(600):
        found = read(layer, {f"id-{number}": number, "model": number})
        assert (found.model, layer.rest(found)) == (number, {f"id-{number}": number})
    assert len(layer._learned) <= 256


def test_read_record_with_more_keys_than_are_kept_is_read_whole():
    layer = Layer(model=Any)
    value = {f"k{number}": number for number in range(400)}
    assert layer.rest(read(layer, value)) == value
    assert layer.rest(read(layer, {"other": 1})) == {"other": 1}


def test_memo_makes_each_value_once_and_forgets_beyond_its_limit():
    made = []

    def make(raw):
        made.append(raw)
        return len(made)

    memo = Memo(make, most=2)
    assert [memo(b"a"), memo(b"b"), memo(b"a")] == [1, 2, 1]
    assert memo(b"c") == 3
    assert memo(b"a") == 4
    assert made == [b"a", b"b", b"c", b"a"]


def test_memo_a_value_of_null_is_remembered_too():
    made = []
    memo = Memo(made.append)
    assert (memo(b"a"), memo(b"a"), made) == (None, None, [b"a"])
