"""Checks strictness, counts and schedules: the rules that every settings class inherits."""

import math
import re

import numpy as np
import pytest
from pydantic import ValidationError

from quintain.algorithms.settings import PPOSettings
from quintain.errors import SettingsError
from quintain.settings.base import Count, Schedule, Settings, constant, read_count


class Example(Settings):
    count: Count = 8
    """Number of things."""

    whole: int = 1
    real: float = 1.0
    switch: bool = False
    sizes: tuple[Count, ...] = (64,)
    optional_sizes: tuple[int, ...] | None = None
    rate: Schedule = constant(0.5)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (1_000_000, 1_000_000),
        ("100k", 100_000),
        ("1M", 1_000_000),
        ("1.5M", 1_500_000),
        ("4.35k", 4_350),
        ("1_000k", 1_000_000),
        (1e5, 100_000),
    ],
)
def test_count_reads_what_people_write(written, meant):
    count = Example(count=written).count
    assert count == meant
    assert type(count) is int


@pytest.mark.parametrize("written", [0, -1, 1.5, "12", "1.0001k", "0k", "1g", "1 k", True, None, "k", "-1k"])
def test_count_refuses_what_is_no_positive_integer(written):
    with pytest.raises(SettingsError, match="Example: count: "):
        Example(count=written)


@pytest.mark.parametrize(
    "wrong",
    [
        {"whole": "8"},
        {"whole": True},
        {"whole": 1.0},
        {"real": "1.0"},
        {"real": True},
        {"real": math.nan},
        {"real": math.inf},
        {"switch": 1},
        {"switch": "true"},
        {"sizes": 3},
        {"sizes": "abc"},
        {"sizes": [1, "a"]},
        {"unknown": 1},
    ],
)
def test_nothing_is_converted_silently(wrong):
    with pytest.raises(SettingsError, match="Example: "):
        Example(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said", "code"),
    [
        ({"cuont": 1}, 'Example: cuont: unknown setting; did you mean "count"?', "E0203"),
        ({"rate": {"start": 1.0, "ende": 0.0}}, 'Example: rate.ende: unknown setting; did you mean "end"?', "E0203"),
        ({"count": -5}, "Example: count: found -5, expected more than 0", "E0205"),
        ({"whole": "a"}, 'Example: whole: found "a", expected an integer', "E0205"),
    ],
)
def test_a_wrong_keyword_gets_the_sentence_of_the_command_line(wrong, said, code):
    with pytest.raises(SettingsError, match=f"^{re.escape(said)}$") as caught:
        Example(**wrong)
    assert caught.value.code == code


def test_a_name_that_is_nearest_to_another_frameworks_is_answered_by_ours():
    with pytest.raises(SettingsError, match='PPOSettings: clip_rang: unknown setting; did you mean "clip_coef"'):
        PPOSettings(clip_rang=0.1)


def test_numbers_of_numpy_are_numbers():
    example = Example(
        count=np.int64(5), whole=np.int8(3), real=np.float32(0.5), switch=np.True_, sizes=np.array([2, 4]),
        optional_sizes=[np.uint8(7)], rate=np.float64(0.25),
    )  # fmt: skip
    same = Example(count=5, whole=3, real=0.5, switch=True, sizes=(2, 4), optional_sizes=(7,), rate=0.25)
    assert example == same
    assert repr(example) == repr(same)
    with pytest.raises(SettingsError, match=r"found 1\.5, expected an integer"):
        Example(whole=np.float32(1.5))


@pytest.mark.parametrize(
    ("given", "meant"), [(5, 5), ("10k", 10_000), ("12", 12), (1e3, 1000), ("2e3", 2000), (np.int64(7), 7)]
)
def test_a_count_in_python_is_read_as_on_the_command_line(given, meant):
    count = read_count(given, "train()")
    assert (count, type(count)) == (meant, int)


@pytest.mark.parametrize("given", ["10m", "10q", "10K"])
def test_a_wrong_suffix_of_a_count_names_the_right_ones(given: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_count(given, "train()")
    assert refused.value.message == f'train(): found "{given}", expected an integer, such as 10k or 10M'


@pytest.mark.parametrize("given", [0, -5, "-5", 1.5, "10kk", True, None, "", [1]])
def test_a_count_in_python_that_is_none_is_refused(given):
    with pytest.raises(SettingsError, match=r"^train\(\): found "):
        read_count(given, "train()")


def test_an_integer_is_a_number():
    real = Example(real=3).real
    assert real == 3.0
    assert type(real) is float


def test_lists_become_tuples():
    example = Example(sizes=[1, "2k"], optional_sizes=[3])
    assert example.sizes == (1, 2000)
    assert example.optional_sizes == (3,)


def test_settings_cannot_change():
    with pytest.raises(ValidationError):
        Example().whole = 2


def test_the_string_below_a_field_is_its_help():
    assert Example.model_fields["count"].description == "Number of things."


def test_a_bare_number_is_a_constant_schedule():
    rate = Example(rate=0.25).rate
    assert (rate.at(0.0), rate.at(0.7), rate.at(2.0)) == (0.25, 0.25, 0.25)
    assert Example(rate=0.25).model_dump()["rate"] == 0.25


def test_a_linear_schedule_moves_in_proportion_and_then_stays():
    schedule = Schedule(start=1.0, end=0.5, shape="linear")
    # 1 - 0.25 * 0.5
    assert schedule.at(0.25) == 0.875
    assert schedule.at(1.0) == 0.5
    assert schedule.at(1.5) == 0.5
    assert schedule.at(-0.5) == 1.0


def test_a_cosine_schedule_is_slow_at_both_ends():
    schedule = Schedule(start=1.0, end=0.0, shape="cosine")
    # (1 + cos(pi / 3)) / 2 = (1 + 0.5) / 2
    assert schedule.at(1 / 3) == pytest.approx(0.75, abs=1e-12)
    assert schedule.at(0.5) == pytest.approx(0.5, abs=1e-12)
    assert schedule.at(1.0) == 0.0


def test_an_end_alone_means_linear():
    assert Schedule.model_validate({"start": 1.0, "end": 0.0}).shape == "linear"


@pytest.mark.parametrize(
    "wrong",
    [
        {"end": 0.0},
        {"start": 1.0, "shape": "linear"},
        {"start": 1.0, "end": 0.0, "shape": "constant"},
        {"start": 1.0, "end": 0.0, "shape": "stairs"},
        {"start": 1.0, "until": 0.5},
        {"start": 1.0, "end": 0.0, "until": 0.0},
        {"start": 1.0, "end": 0.0, "until": 1.5},
        {"start": 1.0, "end": 0.0, "until": 0.5, "warm_up": 0.5},
        {"start": 1.0, "warm_up": 1.0},
        {"start": 1.0, "warm_up": -0.1},
        {"start": 1.0, "end": 0.0, "steps": [[0.5, 0.1]]},
        {"start": 1.0, "shape": "steps"},
        {"start": 1.0, "steps": [[0.5, 0.1], [0.5, 0.2]]},
        {"start": 1.0, "steps": [[0.5, 0.1]], "warm_up": 0.5},
        {"start": 1.0, "steps": [[1.0, 0.1]]},
        {"start": 1.0, "steps": [0.5]},
        "0.1",
        True,
        [1.0, 0.0],
    ],
)
def test_a_schedule_refuses_what_it_cannot_follow(wrong):
    with pytest.raises(ValidationError):
        Schedule.model_validate(wrong)


def test_a_schedule_may_end_before_the_budget_does():
    schedule = Schedule.model_validate({"start": 1.0, "end": 0.0, "until": 0.25})
    assert [schedule.at(part) for part in (0.0, 0.125, 0.25, 0.5, 1.0)] == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert Schedule.model_validate(schedule.model_dump()) == schedule
    # One over the whole budget is written as before there were others.
    assert "until" not in Schedule(start=1.0, end=0.0, shape="linear").model_dump()


def test_a_moving_schedule_survives_a_round_trip():
    schedule = Schedule(start=1.0, end=0.1, shape="cosine")
    assert Schedule.model_validate(schedule.model_dump()) == schedule


def test_a_schedule_rises_from_zero_while_it_warms_up():
    schedule = Schedule.model_validate({"start": 1.0, "end": 0.5, "warm_up": 0.2, "until": 0.6})
    # 0.1 is half of the warm-up; 0.4 is half of the way from 0.2 to 0.6: 1 - 0.5 * 0.5.
    assert [schedule.at(part) for part in (-1.0, 0.0, 0.1, 0.2)] == [0.0, 0.0, 0.5, 1.0]
    assert [schedule.at(part) for part in (0.4, 0.6, 1.0)] == pytest.approx([0.75, 0.5, 0.5])
    constant = Schedule.model_validate({"start": 2.0, "warm_up": 0.5})
    assert [constant.at(part) for part in (0.0, 0.25, 0.5, 1.0)] == [0.0, 1.0, 2.0, 2.0]
    assert (constant.is_constant, Schedule(start=2.0).is_constant) == (False, True)
    for each in (schedule, constant):
        assert Schedule.model_validate(each.model_dump()) == each


def test_a_schedule_in_steps_holds_each_value_until_the_next():
    schedule = Schedule.model_validate({"start": 1.0, "steps": [[0.25, 0.5], [0.75, 0.0]]})
    assert schedule.shape == "steps"
    parts = (0.0, 0.2499, 0.25, 0.5, 0.75, 1.0, 2.0)
    assert [schedule.at(part) for part in parts] == [1.0, 1.0, 0.5, 0.5, 0.0, 0.0, 0.0]
    assert Schedule.model_validate(schedule.model_dump(mode="json")) == schedule
