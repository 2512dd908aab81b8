import pytest

from thalweg.engine.config import EngineConfig, Origin
from thalweg.engine.environment import unknown_variables, variables
from thalweg.engine.fields import FIELDS
from thalweg.interfaces import ConfigError


def test_every_option_has_a_variable_named_after_it() -> None:
    assert list(variables()) == [f"THALWEG_{option.name.upper()}" for option in FIELDS]
    assert variables()["THALWEG_MAX_NUM_SEQS"].read({"THALWEG_MAX_NUM_SEQS": "7"}) == 7


def test_a_misspelled_variable_is_found_with_the_name_it_resembles() -> None:
    environ = {"THALWEG_MAX_NUM_SEQ": "7", "THALWEG_MODE": "plain", "THALWEG_QWERTY": "1", "PATH": "/bin"}
    assert unknown_variables(environ) == {"THALWEG_MAX_NUM_SEQ": "THALWEG_MAX_NUM_SEQS", "THALWEG_QWERTY": None}


def test_a_variable_fills_a_default_and_an_argument_wins() -> None:
    environ = {"THALWEG_MAX_NUM_SEQS": "7", "THALWEG_MODE": "plain"}
    config = EngineConfig.build(environ=environ, max_num_seqs=9)
    assert (config.scheduler.max_num_seqs, config.mode) == (9, "plain")
    assert config.origin("max_num_seqs") is Origin.ARGUMENT
    assert config.origin("mode") is Origin.ENVIRONMENT


@pytest.mark.parametrize(
    ("name", "text"),
    [("MAX_NUM_SEQS", "many"), ("MAX_NUM_SEQS", "0"), ("MODE", "fast"), ("CHUNKED_PREFILL", "2"), ("MODEL", "")],
)
def test_a_bad_value_names_its_variable(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"THALWEG_{name}"):
        EngineConfig.build(environ={f"THALWEG_{name}": text})
