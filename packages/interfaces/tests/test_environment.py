import pytest

from thalweg.interfaces import ConfigError, Variable, parse_bool

SIZE = Variable("MAX_SIZE", int, "a size")


def test_an_unset_variable_reads_as_none() -> None:
    assert SIZE.read({}) is None


def test_a_set_variable_is_parsed_under_its_full_name() -> None:
    assert SIZE.full_name == "THALWEG_MAX_SIZE"
    assert SIZE.read({"THALWEG_MAX_SIZE": "12", "MAX_SIZE": "13"}) == 12


def test_a_bad_value_names_variable_and_value() -> None:
    with pytest.raises(ConfigError, match=r"^THALWEG_MAX_SIZE is 'a lot': "):
        SIZE.read({"THALWEG_MAX_SIZE": "a lot"})


def test_an_empty_value_is_parsed_not_ignored() -> None:
    with pytest.raises(ConfigError, match="THALWEG_MAX_SIZE is ''"):
        SIZE.read({"THALWEG_MAX_SIZE": ""})


def test_the_process_environment_is_read_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THALWEG_MAX_SIZE", raising=False)
    assert SIZE.read() is None
    monkeypatch.setenv("THALWEG_MAX_SIZE", "5")
    assert SIZE.read() == 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", True),
        (" Yes ", True),
        ("on", True),
        ("TRUE", True),
        ("0", False),
        ("no", False),
        ("Off", False),
        ("false", False),
    ],
)
def test_booleans_have_several_spellings(text: str, value: bool) -> None:
    assert parse_bool(text) is value


@pytest.mark.parametrize("text", ["", "2", "enabled", "truefalse"])
def test_other_spellings_of_a_boolean_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match="expected 1/true/yes/on"):
        parse_bool(text)
