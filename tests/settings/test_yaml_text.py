"""Checks the YAML reader: YAML 1.2 scalars, positions, and every limit against hostile text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import SettingsError
from quintain.settings.yaml_text import parse, read_file, write_flow


def refusal(text):
    with pytest.raises(SettingsError) as caught:
        parse(text, "a.yaml")
    assert caught.value.code == "E0202"
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 0.0003),
        ("1E5", 100000.0),
        (".5", 0.5),
        ("-2", -2),
        ("+2", 2),
        ("1_000_000", 1_000_000),
        ("1__0", "1__0"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("'3'", "3"),
        ('"true"', "true"),
        ("2020-01-01", "2020-01-01"),
        ("12:30:00", "12:30:00"),
        ("0x10", "0x10"),
        ("nan", "nan"),
        ("CartPole-v1", "CartPole-v1"),
        ("package.module:Name", "package.module:Name"),
        ("100k", "100k"),
        ("[1, a, {b: 2.0}]", [1, "a", {"b": 2.0}]),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    found = parse(f"key: {text}", "a.yaml").value["key"]
    assert found == value
    assert type(found) is type(value)


def test_every_key_and_item_has_a_position():
    document = parse("a:\n  b: [x, y]\nc: 1\n", "a.yaml")
    assert document.positions == {
        ("a",): (1, 1),
        ("a", "b"): (2, 3),
        ("a", "b", 0): (2, 7),
        ("a", "b", 1): (2, 10),
        ("c",): (3, 1),
    }


def test_keys_are_text():
    assert parse("1: a\ntrue: b", "a.yaml").value == {"1": "a", "true": "b"}


def test_aliases_are_copies():
    value = parse("a: &x {b: 1}\nc: *x", "a.yaml").value
    assert value == {"a": {"b": 1}, "c": {"b": 1}}
    assert value["a"] is not value["c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", 'a.yaml:3:1: key "a" stands here again, first on line 1; keep one'),
        ("a:\n\tb: 1", "a.yaml:2:1: a tab stands in the indentation; use spaces"),
        ("a: .nan", "a.yaml:1:4: .nan is not a finite number"),
        ("a: -.inf", "a.yaml:1:4: -.inf is not a finite number"),
        ("a: 1e999", "a.yaml:1:4: 1e999 is too large for a number"),
        ("a: !!str 3", "a.yaml:1:4: tag tag:yaml.org,2002:str is not allowed"),
        ("!x a: 3", "a.yaml:1:1: tag !x is not allowed"),
        ("a: *b", "a.yaml:1:4: alias *b has no anchor before it"),
        ("a: 1\n---\nb: 2", "a.yaml:2:1: a second document begins, expected one"),
        ("? [a]\n: 1", "a.yaml:1:3: a key must be a plain word"),
        ("a: \x07", "a.yaml:1: character U+0007 is not allowed"),
    ],
)
def test_a_problem_is_one_line_with_its_place(text, message):
    assert refusal(text).message == message


def test_a_syntax_error_says_where():
    assert refusal("a: b\nc: [1,").message.startswith("a.yaml:3:1: while parsing a flow node")


def test_an_override_has_no_line():
    with pytest.raises(SettingsError, match=r"^override a=\.nan: \.nan is not a finite number$"):
        parse(".nan", "override a=.nan", is_file=False)


def test_python_tags_construct_nothing():
    assert "tag" in refusal("a: !!python/object/apply:os.getcwd []").message


def test_all_problems_are_reported_at_once():
    error = refusal("a: 1\na: 2\nb: .nan\nc: *d")
    assert error.message.endswith("(first of 3 problems)")
    assert error.notes == ("a.yaml:3:4: .nan is not a finite number", "a.yaml:4:4: alias *d has no anchor before it")


def test_at_most_twenty_problems_are_reported():
    error = refusal("".join(f"k{number}: .nan\n" for number in range(30)))
    assert 1 + len(error.notes) == 20


def test_depth_is_limited():
    assert parse("a: " + "[" * 31 + "]" * 31, "a.yaml").value["a"] != []
    assert "more than 32 levels" in refusal("a: " + "[" * 40 + "]" * 40).message


def test_depth_counts_what_aliases_bring():
    levels = "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 40))
    assert "more than 32 levels" in refusal("a0: &a0 [1]\n" + levels).message


def test_sixty_four_aliases_are_enough():
    parse("a: &a 1\nb: [" + "*a, " * 64 + "]", "a.yaml")
    assert "more than 64 aliases" in refusal("a: &a 1\nb: [" + "*a, " * 65 + "]").message


def test_an_alias_bomb_is_refused_before_it_unfolds():
    bomb = "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30))
    assert "values" in refusal(bomb).message


def test_huge_integers_are_refused():
    assert "digits" in refusal("a: " + "9" * 5000).message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"# nothing\n", "empty"),
        (b"- a\n", "found a list, expected a mapping"),
        (b"text", "found a string, expected a mapping"),
        (b"a: 1\nb: \xff\n", ":2: not UTF-8"),
        ("a: 1".encode("utf-16"), "not UTF-8"),
        (b"a: " + b"x" * 1_000_001, "larger than 1_000_000 bytes"),
    ],
)
def test_a_file_must_be_a_small_mapping_in_utf_8(tmp_path, content, message):
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        read_file(path)
    assert caught.value.message.startswith(str(path))
    assert message in caught.value.message


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.yaml: cannot read: No such file") as caught:
        read_file(tmp_path / "none.yaml")
    assert caught.value.code == "E0210"


def test_a_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_file(path).value == {"a": 1}


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)


@given(trees)
def test_what_is_written_is_read_back(tree):
    assert repr(parse("key: " + write_flow(tree), "a.yaml").value) == repr({"key": tree})


@pytest.mark.parametrize("text", ["3e-4", "1e5", "1_000", "", "~", "off", ".inf", "-", "a: b", "#", "<<", "="])
def test_strings_that_look_like_something_else_stay_strings(text):
    assert parse(f"key: {write_flow(text)}", "a.yaml").value == {"key": text}
