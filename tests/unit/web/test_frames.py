"""Frames: what is encoded is decoded, and large ones are packed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.services.web.frames import Frame, compact, control, decode, encode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(texts, st.integers(0, 2**53), st.none() | st.integers(0, 2**53), st.dictionaries(texts, values), st.binary())
def test_a_frame_is_decoded_as_it_was(key, rev, base, data, body):
    frame = Frame(key, rev, base, data, body)
    assert decode(encode(frame)) == frame


def test_large_frames_are_packed_and_the_same_state_gives_the_same_bytes():
    frame = Frame("gpus", 3, None, {"gpus": [f"volta-{at}/0" for at in range(1024)]}, bytes(6 * 1024))
    data = encode(frame)
    assert data[0] == 1
    assert len(data) < 6000
    assert encode(frame) == data
    assert encode(Frame("head", 1, None, {}))[0] == 0


@pytest.mark.parametrize("data", [b"", b"\x02abc", b"\x07"])
def test_other_bytes_are_no_frame(data):
    with pytest.raises(ValueError, match="begins with"):
        decode(data)


@given(texts)
def test_names_stay_as_they_are_in_json(name):
    assert json.loads(compact({"name": name}))["name"] == name
    assert json.loads(control("refused", key=name)) == {"op": "refused", "key": name}


def test_half_a_character_does_not_break_a_message():
    assert json.loads(control("refused", key="\ud800"))["key"] == "?"


def test_not_a_number_is_a_mistake_here_and_not_at_the_page():
    with pytest.raises(ValueError, match="Out of range float"):
        compact({"ratio": float("nan")})
