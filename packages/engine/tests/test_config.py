import dataclasses
from pathlib import Path

import numpy as np
import pytest

from thalweg.engine.config import EngineConfig, Origin
from thalweg.engine.fields import FIELDS, Field
from thalweg.engine.sections import BackendConfig, CacheConfig
from thalweg.interfaces import ConfigError
from thalweg.scheduler.config import SchedulerConfig


def test_every_option_has_one_flat_name_and_reads_its_default() -> None:
    names = [option.name for option in FIELDS]
    assert len(set(names)) == len(names)
    assert [line.field.name for line in EngineConfig().resolved()] == names


def test_the_table_covers_every_option_of_every_section() -> None:
    covered = {(option.section, option.attribute) for option in FIELDS}
    sections = {option.section for option in FIELDS if option.section}
    for section in sections:
        for attribute in dataclasses.fields(getattr(EngineConfig(), section)):
            assert (section, attribute.name) in covered
    own = {attribute.name for attribute in dataclasses.fields(EngineConfig)} - sections - {"origins"}
    assert {("", name) for name in own} <= covered


def test_an_argument_beats_the_environment_which_beats_the_default() -> None:
    environ = {"THALWEG_MAX_MODEL_LEN": "512", "THALWEG_MAX_NUM_SEQS": "8"}
    config = EngineConfig.build(environ=environ, max_num_seqs=4)
    assert (config.scheduler.max_model_len, config.scheduler.max_num_seqs, config.seed) == (512, 4, 0)
    assert config.origin("max_model_len") is Origin.ENVIRONMENT
    assert config.origin("max_num_seqs") is Origin.ARGUMENT
    assert config.origin("seed") is Origin.DEFAULT


def test_a_blacklist_is_written_with_commas() -> None:
    read = EngineConfig.build(environ={"THALWEG_TOKEN_BLACKLIST": "3, 1,3"}).sampling.token_blacklist
    assert read == (3, 1, 3)
    assert EngineConfig.build(environ={"THALWEG_TOKEN_BLACKLIST": ""}).sampling.token_blacklist == ()
    for text in ("1,,2", "1;2", "0..3", ","):
        with pytest.raises(ConfigError, match=f"THALWEG_TOKEN_BLACKLIST is '{text}'"):
            EngineConfig.build(environ={"THALWEG_TOKEN_BLACKLIST": text})


def test_the_constructor_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THALWEG_SEED", "5")
    assert EngineConfig(scheduler=SchedulerConfig(max_num_seqs=3)).seed == 0
    assert EngineConfig.build().seed == 5


def test_the_origin_of_a_section_given_whole_is_the_argument() -> None:
    config = EngineConfig(cache=CacheConfig(num_blocks=9))
    assert config.origin("num_blocks") is Origin.ARGUMENT
    assert config.origin("slot_ratio") is Origin.DEFAULT


def test_options_can_be_replaced_afterwards() -> None:
    config = EngineConfig.build(environ={"THALWEG_SEED": "5"}).with_options(seed=6, num_blocks=12)
    assert (config.seed, config.cache.num_blocks) == (6, 12)
    assert config.origin("seed") is Origin.ARGUMENT


def test_other_defaults_leave_alone_what_somebody_set() -> None:
    config = EngineConfig.build(environ={"THALWEG_SEED": "5"}).with_defaults(seed=6, stop_preempted_request=False)
    assert (config.seed, config.scheduler.stop_preempted_request) == (5, False)
    assert config.origin("stop_preempted_request") is Origin.DEFAULT


def test_an_unknown_option_names_close_matches() -> None:
    with pytest.raises(ConfigError, match="unknown option 'max_modl_len'; did you mean max_model_len"):
        EngineConfig.build(environ={}, max_modl_len=5)
    with pytest.raises(ConfigError, match="unknown option 'zzz'; known are arithmetic, "):
        EngineConfig().with_options(zzz=5)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", -1, "seed is -1; it must be an integer from 0"),
        ("mode", "fast", "mode is 'fast'; it must be 'quant' or 'plain'"),
        ("arithmetic", "bf16", "arithmetic is 'bf16'"),
        ("model", 3, "model is 3; it must be None or a path"),
        ("logprobs_mode", "Raw", "logprobs_mode is 'Raw'; it must be 'raw' or 'processed'"),
        *(
            ("token_blacklist", value, "token_blacklist is ")
            for value in ([1], 3, "1,2", None, (1, -1), (True,), (1.0,))
        ),
        *(("force_top_k", value, "force_top_k is ") for value in (-1, 2**31, 1.0, "5", None, True)),
        *(("return_draws", value, "return_draws is ") for value in (1, "yes", None)),
        ("num_blocks", 1, "num_blocks is 1"),
        ("memory_fraction", 1.5, "memory_fraction is 1.5"),
        ("slot_ratio", 0.5, "slot_ratio is 0.5"),
        ("memory_fraction", 10**400, "memory_fraction is 1000"),
        ("confidence_temperatures", 1.0, r"confidence_temperatures is 1\.0; it must be a tuple of numbers"),
        ("confidence_temperatures", (1.0, -2.0), r"confidence_temperatures is .*temperatures\[1\] is -2\.0; a finite"),
        ("confidence_temperatures", (float("nan"),), r"temperatures\[0\] is nan; a finite number above 0 is needed"),
        ("max_num_seqs", 0, "max_num_seqs is 0"),
        ("expert_parallel_size", 2, "^expert_parallel_size is 2; this version"),
        ("draft_length", -1, r"draft_length is -1; it must be None or an integer from 0 to 1024"),
        ("draft_length", 1.0, r"draft_length is 1\.0; it must be None or an integer"),
        ("variable_length", 1, "variable_length is 1; it must be True or False"),
        ("verification", "guess", "verification is 'guess'; it must be 'rejection' or 'coupled'"),
        ("draft_positions", "relative", "draft_positions is 'relative'; it must be 'per_step' or 'absolute'"),
        ("backend", "tpu", "backend is 'tpu'; it must be 'cpu' or"),
        ("kernels", ("norm",), "kernels is"),
        (
            "kernels",
            (("a", "x"), ("b", "x"), ("a", "y")),
            "kernels names 'a' twice, with 'x' and 'y'; give each op once",
        ),
        ("replay", "cut", "replay is 'cut'; it must be 'off' or 'mask' or 'compact'"),
        ("replay_keep_tokens", -1, "replay_keep_tokens is -1; it must be an integer from 0"),
        ("async_scheduling", 1, "async_scheduling is 1; it must be"),
        ("engine_type", "prompt", "engine_type is 'prompt'; only 'normal' is accepted"),
        ("sync_guard", "no", "sync_guard is 'no'; it must be True or False"),
        ("check_lengths", 0, "check_lengths is 0; it must be True or False"),
        *(("structured_workers", value, "structured_workers is ") for value in (0, 257, 2.0, True, None)),
        *(("structured_timeout_s", value, "structured_timeout_s is ") for value in (0, -1.0, 86401, "20", True, None)),
        ("structured_timeout_s", float("nan"), "structured_timeout_s is nan; it must be above 0 and at most 86400"),
        ("structured_cache_bytes", -1, "structured_cache_bytes is -1; it must be an integer from 0 to"),
        ("structured_max_pending_per_user", 0, "structured_max_pending_per_user is 0; it must be an integer from 1"),
        ("structured_mask_threads", 0, "structured_mask_threads is 0; it must be an integer from 1 to 256"),
        ("log_stats", None, "log_stats is None; it must be True or False"),
        ("logging_interval_steps", 10.0, "logging_interval_steps is 10.0; it must be an integer"),
        ("peak_tflops", 0, "peak_tflops is 0; it must be None or from above 0 to 1e\\+09"),
        ("peak_tflops", True, "peak_tflops is True"),
        ("peak_tflops", float("nan"), "peak_tflops is nan"),
        ("metrics", 1, "metrics is 1; it must be True or False"),
        ("profile_port", 65536, "profile_port is 65536; it must be None or an integer from 0 to 65535"),
        ("profile_dir", "", "profile_dir is ''; it must be None or a path"),
    ],
)
def test_a_bad_value_names_the_option_and_what_is_accepted(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.build(environ={}, **{name: value})


def test_the_reference_policy_takes_no_lookahead_that_starves_short_prompts() -> None:
    with pytest.raises(ConfigError, match="lookahead_tokens is 2; with policy 'reference' it must be 0 or 1"):
        EngineConfig.build(environ={}, policy="reference", lookahead_tokens=2)
    assert EngineConfig.build(environ={}, lookahead_tokens=2).scheduler.lookahead_tokens == 2


def test_paths_may_be_path_objects(tmp_path: Path) -> None:
    config = EngineConfig.build(environ={}, model=tmp_path, tokenizer=tmp_path / "tokenizer.json")
    assert (config.model, config.tokenizer) == (str(tmp_path), str(tmp_path / "tokenizer.json"))


def test_blocks_and_memory_fraction_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        EngineConfig.build(environ={}, num_blocks=8, memory_fraction=0.5)
    config = EngineConfig.build(environ={"THALWEG_MEMORY_FRACTION": "0.3"}, num_blocks=8)
    assert config.cache == CacheConfig(num_blocks=8)


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="THALWEG_SEED is 'many'"):
        EngineConfig.build(environ={"THALWEG_SEED": "many"})
    with pytest.raises(ConfigError, match="THALWEG_MODE is 'fast': expected quant or plain"):
        EngineConfig.build(environ={"THALWEG_MODE": "fast"})
    with pytest.raises(ConfigError, match=r"max_num_seqs is 0; .*set by THALWEG_MAX_NUM_SEQS"):
        EngineConfig.build(environ={"THALWEG_MAX_NUM_SEQS": "0"})
    for text in ("1,", "1,,2", "1;2"):
        with pytest.raises(ConfigError, match=f"THALWEG_CONFIDENCE_TEMPERATURES is '{text}'"):
            EngineConfig.build(environ={"THALWEG_CONFIDENCE_TEMPERATURES": text})


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("GRAPH_INTERVAL", "nan", "an integer"),
        ("NUM_BLOCKS", "1e9", "an integer or none"),
        ("SLOT_RATIO", "much", "a number"),
        ("PEAK_TFLOPS", "much", "a number or none"),
        ("TOKEN_BLACKLIST", "1,x", "integers separated by commas"),
        ("CONFIDENCE_TEMPERATURES", "1,x", "numbers separated by commas"),
    ],
)
def test_a_variable_that_is_no_number_says_what_is_expected(name: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.build(environ={f"THALWEG_{name}": text})
    assert str(caught.value) == f"THALWEG_{name} is {text!r}: expected {expected}"


def test_what_variables_say_of_kernels_and_groups_is_named_after_them() -> None:
    with pytest.raises(ConfigError, match=r"^data_parallel_size is 2; .*\(set by THALWEG_DATA_PARALLEL_SIZE\)$"):
        EngineConfig.build(environ={"THALWEG_DATA_PARALLEL_SIZE": "2"})
    with pytest.raises(ConfigError, match=r"^kernels names 'a' twice, .*\(set by THALWEG_KERNELS\)$"):
        EngineConfig.build(environ={"THALWEG_KERNELS": "a=x,a=y"})
    with pytest.raises(ConfigError) as caught:
        EngineConfig.build(environ={"THALWEG_SEED": "x" * 100_000})
    assert len(str(caught.value)) < 1000


def test_variables_of_every_kind_are_understood() -> None:
    environ = {
        "THALWEG_CHUNKED_PREFILL": "yes",
        "THALWEG_MAX_NUM_BATCHED_TOKENS": "none",
        "THALWEG_NUM_BLOCKS": "33",
        "THALWEG_KERNELS": "rms_norm=reference,route=reference",
        "THALWEG_CONFIDENCE_TEMPERATURES": "",
    }
    config = EngineConfig.build(environ=environ)
    assert config.scheduler.chunked_prefill is True
    assert config.scheduler.max_num_batched_tokens is None
    assert config.cache.num_blocks == 33
    assert config.backend == BackendConfig(kernels=(("rms_norm", "reference"), ("route", "reference")))


def test_the_checkpoint_shortens_the_default_length_but_not_a_wanted_one() -> None:
    config = EngineConfig.build(environ={}).for_checkpoint(max_position_embeddings=1000)
    assert config.scheduler.max_model_len == 1000
    assert config.origin("max_model_len") is Origin.CHECKPOINT
    assert config.speculation.draft_length == 0
    wanted = EngineConfig.build(environ={}, max_model_len=2000)
    with pytest.raises(ConfigError, match="max_model_len is 2000; the checkpoint has max_position_embeddings 1000"):
        wanted.for_checkpoint(max_position_embeddings=1000)


def test_devices_compute_on_stored_formats_and_the_cpu_does_if_asked() -> None:
    def settled(backend: str, **options: object) -> str:
        config = EngineConfig.build(environ={}, backend=backend, **options)
        return config.for_checkpoint(max_position_embeddings=4096).arithmetic

    assert [settled(backend) for backend in ("cpu", "sm90", "sm100")] == ["exact", "native", "native"]
    assert settled("cpu", arithmetic="native") == "native"
    with pytest.raises(ConfigError, match="arithmetic is 'float32' with backend 'sm90'; there 'native' is accepted"):
        settled("sm90", arithmetic="float32")
    for backend in ("cpu", "sm90"):
        with pytest.raises(ConfigError, match="mode is 'plain' with arithmetic 'native'"):
            settled(backend, mode="plain", **({"arithmetic": "native"} if backend == "cpu" else {}))


class _Hostile:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("option", FIELDS, ids=lambda option: option.name)
def test_no_value_makes_the_check_of_an_option_fail_itself(option: Field) -> None:
    for value in (10**5000, _Hostile(), np.ones(3), np.zeros(0), {"a": 1}):
        with pytest.raises(ConfigError):
            EngineConfig.build(environ={}, **{option.name: value})


def test_whether_steps_overlap_is_settled_by_the_backend_unless_somebody_says_so() -> None:
    def settled(backend: str, **options: object) -> bool:
        config = EngineConfig.build(environ={}, backend=backend, **options)
        return config.for_checkpoint(max_position_embeddings=4096).scheduler.async_scheduling

    assert [settled(backend) for backend in ("cpu", "sm90", "ascend")] == [False, True, True]
    assert [settled(backend, async_scheduling=None) for backend in ("cpu", "sm90")] == [False, True]
    assert settled("cpu", async_scheduling=True)
    assert not settled("sm90", async_scheduling=False)
    assert EngineConfig.build(environ={"THALWEG_ASYNC_SCHEDULING": "1"}).scheduler.async_scheduling
