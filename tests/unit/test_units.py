"""Durations and sizes as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.cli import render
from adlro.errors import InvalidInput
from adlro.units import duration_s, size_bytes, size_mib

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("250ms", 0.25),
        ("10s", 10),
        ("10 s", 10),
        ("10m", 600),
        ("10min", 600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1H30M", 5400),
        ("1.5h", 5400),
        ("1h1.5m", 3690),
        ("2d", 172800),
        ("2d12h", 216000),
        ("1w", 604800),
        (" 5m ", 300),
        ("01:30", 90),
        ("90:00", 5400),
        ("01:00:00", 3600),
        ("100:00:00", 360000),
        ("1-0", 86400),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:00:00", 129600),
        ("0-00:00:01", 1),
    ],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *["", " ", "h", "ten", "-5", "+5", "1e3", "inf", "nan", "5x", "1,5h", "0x10", "٣", "1m1h", "1h1h", "1.5h30m"],
        *["1h30", "30 1h", "1:60", "1:60:00", "1:00:60", "1-24", "1-12:60", "1:2:3:4", ":30", "1:", "1-", "-1:00"],
        *["1-1:00:00:00", "1.5:00", "1h:30", "9" * 41],
    ],
)
def test_no_duration(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no duration: write seconds") as refused:
        duration_s(text)
    assert repr(text[:40]) in refused.value.message
    assert len(refused.value.message) < 200


@given(st.integers(0, 10**9))
def test_whole_seconds_are_read_back_in_every_form(seconds: int) -> None:
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    forms = [
        str(seconds),
        f"{seconds}s",
        f"{days}d{hours}h{minutes}m{left}s",
        f"{days}-{hours:02}:{minutes:02}:{left:02}",
        f"{seconds // 3600}:{minutes:02}:{left:02}",
        f"{seconds // 60}:{left:02}",
    ]
    assert {duration_s(each) for each in forms} == {float(seconds)}


@given(st.floats(0, 1e8))
def test_what_is_shown_to_people_is_read_again(seconds: float) -> None:
    shown = render.seconds(seconds)
    rounding_s = 0.06 if seconds < 99.95 else 0.51 if seconds < 3600 else 60 if seconds < 86400 else 3600
    assert duration_s(shown) == pytest.approx(seconds, abs=rounding_s)


@given(st.text(max_size=60))
def test_any_text_is_a_finite_duration_or_refused(text: str) -> None:
    for read in (duration_s, size_bytes):
        try:
            value = read(text)
        except InvalidInput as error:
            assert error.message  # noqa: PT017  # most texts are refused, some are not
        else:
            assert 0 <= value < math.inf


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("20GiB", 20 * GIB),
        ("20gib", 20 * GIB),
        ("20 GiB", 20 * GIB),
        ("20Gi", 20 * GIB),
        ("16G", 16 * GIB),
        ("16GB", 16_000_000_000),
        ("512MiB", 512 * MIB),
        ("800M", 800 * MIB),
        ("1.5G", 3 * GIB // 2),
        ("4k", 4096),
        ("4KB", 4000),
        ("1T", 1 << 40),
        ("100B", 100),
        ("0.1k", 103),  # 102.4: rounded up
    ],
)
def test_a_size(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1 G B", "1e9", "1PiB", "1,5G", "nan", "1G 5M", "G1", "1" * 41])
def test_no_size(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no size: write a number with its unit"):
        size_bytes(text)


def test_a_plain_number_has_the_unit_of_its_option_or_none() -> None:
    with pytest.raises(InvalidInput, match="'4000' has no unit: write 4000MiB or 4000GiB"):
        size_bytes("4000")
    assert size_bytes("4000", plain_unit="MiB") == 4000 * MIB
    assert size_mib("4000", plain_unit="MiB") == 4000
    assert size_mib("16GB") == 15259  # 15258.8: a job that asks for it gets no less
    assert size_mib("0") == 0


@given(st.integers(0, 1 << 24))
def test_sizes_in_mib_are_exact(mib: int) -> None:
    assert size_mib(f"{mib}MiB") == mib
    assert size_mib(f"{mib * 1024}k") == mib


@given(st.integers(1, 1 << 24))
def test_sizes_as_people_see_them_are_read_again(mib: int) -> None:
    assert size_mib(render.mib(mib)) == pytest.approx(mib, abs=1 if mib < 1024 else 53)
