"""Choosing implementations: overrides, architectures, predicates, priorities, and no silent fallback."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch

from thalweg.interfaces import BackendUnavailableError, ConfigError
from thalweg.kernels import Implementation, OpSpec, Registry, Tolerance, bind, default_registry, table, unserved_ops


def function(*_: object) -> str:
    return "called"


def implementation(backend: str = "sm90", provider: str = "tilelang", **rest: object) -> Implementation:
    return Implementation(op="scale", backend=backend, provider=provider, function=function, **rest)


def registry(*implementations: Implementation) -> Registry:
    specs = [OpSpec("scale", "contract", function), OpSpec("shift", "contract", function)]
    reference = implementation("cpu", "reference", deterministic=True, batch_invariant=True)
    return Registry(specs, [reference, *implementations])


def test_the_highest_priority_wins() -> None:
    low, high = implementation(priority=1), implementation(provider="deep_gemm", priority=5)
    assert registry(low, high).select("scale", "sm90") is high
    assert registry(high, low).select("scale", "sm90") is high


def test_an_override_beats_the_priority() -> None:
    low, high = implementation(priority=1), implementation(provider="deep_gemm", priority=5)
    chosen = registry(low, high).select("scale", "sm90", provider="tilelang")
    assert chosen is low


def test_an_implementation_of_another_architecture_is_passed_over() -> None:
    narrow = implementation(priority=5, architectures=frozenset({"sm_90a"}))
    wide = implementation(provider="tile_kernels")
    both = registry(narrow, wide)
    assert both.select("scale", "sm90", architecture="sm_90a") is narrow
    assert both.select("scale", "sm90", architecture="sm_90") is wide
    assert both.select("scale", "sm90") is wide


def test_a_predicate_on_the_dimensions_is_asked() -> None:
    wants_512 = implementation(priority=5, predicate=lambda facts: facts.get("head_dim") == 512)
    wide = implementation(provider="tile_kernels")
    both = registry(wants_512, wide)
    assert both.select("scale", "sm90", facts={"head_dim": 512}) is wants_512
    assert both.select("scale", "sm90", facts={"head_dim": 64}) is wide


def test_batch_invariant_mode_takes_only_what_promises_it() -> None:
    fast = implementation(priority=5)
    steady = implementation(provider="tile_kernels", deterministic=True, batch_invariant=True)
    assert registry(fast, steady).select("scale", "sm90", batch_invariant=True) is steady
    with pytest.raises(BackendUnavailableError, match="sm90/tilelang: not batch-invariant"):
        registry(fast).select("scale", "sm90", batch_invariant=True)


def test_batch_invariant_mode_says_at_the_start_what_does_not_promise_it() -> None:
    fast = implementation(priority=5)
    with pytest.raises(
        BackendUnavailableError,
        match=r"batch_invariant is True, and sm90 has no batch-invariant implementation of scale$",
    ):
        bind("sm90", batch_invariant=True, registry=registry(fast))
    assert bind("sm90", registry=registry(fast)).implementation("scale") is fast
    steady = implementation(provider="tile_kernels", deterministic=True, batch_invariant=True)
    chosen = bind("sm90", batch_invariant=True, registry=registry(fast, steady)).implementation("scale")
    assert chosen is steady
    with pytest.raises(BackendUnavailableError, match="cpu/reference: batch-invariant on cpu only"):
        bind("sm90", {"scale": "reference"}, batch_invariant=True, registry=registry(steady))
    with pytest.raises(BackendUnavailableError, match="sm90/tilelang: not batch-invariant"):
        bind("sm90", {"scale": "tilelang"}, batch_invariant=True, registry=registry(fast, steady))


def test_what_is_batch_invariant_must_be_deterministic() -> None:
    with pytest.raises(ConfigError, match="batch_invariant of scale by sm90/tilelang is True with deterministic False"):
        implementation(batch_invariant=True)


def test_a_device_never_falls_back_to_the_reference_silently() -> None:
    ops = bind("sm90", registry=registry(implementation()))
    assert ops.scale() == "called"
    with pytest.raises(BackendUnavailableError, match=r"nothing computes shift on sm90 .*'reference' would"):
        ops.shift  # noqa: B018


def test_the_reference_serves_a_device_when_it_is_asked_for_by_name() -> None:
    specs = [OpSpec("scale", "contract", function)]
    only_reference = Registry(specs, [implementation("cpu", "reference"), implementation(provider="tilelang")])
    chosen = only_reference.select("scale", "sm90", provider="reference")
    assert chosen.label == "cpu/reference"
    assert bind("sm90", {"scale": "reference"}, registry=only_reference).implementation("scale") is chosen


def test_every_refusal_gives_its_reason() -> None:
    narrow = implementation(architectures=frozenset({"sm_90a"}))
    picky = implementation(provider="deep_gemm", predicate=lambda _: False)
    with pytest.raises(BackendUnavailableError) as caught:
        registry(narrow, picky).select("scale", "sm90", architecture="sm_80")
    message = str(caught.value)
    assert "nothing computes scale on sm90" in message
    assert "sm90/tilelang: built for sm_90a, not sm_80" in message
    assert "sm90/deep_gemm: does not serve these dimensions" in message


def test_a_refused_override_says_what_would_be_taken() -> None:
    entries = registry(implementation(), implementation(provider="deep_gemm", architectures=frozenset({"sm_90a"})))

    def refusal(op: str, provider: str, batch_invariant: bool = False) -> str:
        with pytest.raises(BackendUnavailableError) as caught:
            entries.select(op, "sm90", provider=provider, architecture="sm_80", batch_invariant=batch_invariant)
        return str(caught.value).rpartition(")")[2]

    assert refusal("scale", "deep_gemm") == "; without the override 'tilelang' is taken"
    assert refusal("shift", "deep_gemm") == "; overriding it with 'reference' would"
    assert refusal("shift", "reference") == ""
    assert refusal("scale", "deep_gemm", batch_invariant=True) == ""


def test_long_names_are_shortened() -> None:
    long = "x" * 100_000
    for overrides in ({long: "reference"}, {"rms_norm": long}):
        with pytest.raises(ConfigError) as caught:
            bind("cpu", overrides)
        assert len(str(caught.value)) < 5000
    with pytest.raises(ConfigError) as caught:
        bind(long)
    assert len(str(caught.value)) < 1000


def test_a_decision_is_taken_once_per_question() -> None:
    asked = []

    def predicate(facts: object) -> bool:
        asked.append(facts)
        return True

    one = registry(implementation(predicate=predicate))
    for _ in range(3):
        one.select("scale", "sm90", facts={"heads": 64})
    assert len(asked) == 1
    one.select("scale", "sm90", facts={"heads": 128})
    assert len(asked) == 2


def test_unknown_names_are_refused_and_known_ones_listed() -> None:
    with pytest.raises(ConfigError, match="backend is 'tpu'; known are cpu, sm90, sm100, ascend"):
        bind("tpu")
    with pytest.raises(ConfigError, match=r"there is no op 'scales'; the ops are .*rms_norm"):
        bind("cpu", {"scales": "reference"})
    with pytest.raises(
        ConfigError, match="the override of rms_norm is 'magic'; known providers are reference, tilelang"
    ):
        bind("cpu", {"rms_norm": "magic"})
    expected = (
        r"nothing computes rms_norm on cpu by tilelang .*not tilelang\); without the override 'reference' is taken$"
    )
    with pytest.raises(BackendUnavailableError, match=expected):
        bind("cpu", {"rms_norm": "tilelang"})
    with pytest.raises(
        BackendUnavailableError, match="no kernels of backend 'sm100' are installed; installed: cpu, sm90"
    ):
        bind("sm100")
    with pytest.raises(AttributeError, match="there is no op 'softmin'"):
        bind("cpu").softmin  # noqa: B018
    with pytest.raises(ConfigError, match="backend of scale is 'gpu'"):
        implementation("gpu")
    with pytest.raises(ConfigError, match="provider of scale is 'cutlass'"):
        implementation(provider="cutlass")


def test_two_implementations_in_the_same_place_are_refused() -> None:
    with pytest.raises(ConfigError, match="scale has two implementations sm90/tilelang of priority 0"):
        registry(implementation(), implementation())


def test_a_registry_can_be_extended_without_being_changed() -> None:
    base = default_registry()
    more = base.extended([Implementation("rms_norm", "sm100", "tilelang", function)])
    assert base.backends == ("cpu", "sm90")
    assert more.backends == ("cpu", "sm90", "sm100")
    assert bind("sm100", registry=more).rms_norm() == "called"


def test_bound_ops_are_the_functions_of_the_reference_on_the_cpu() -> None:
    ops = bind("cpu", batch_invariant=True)
    for op in default_registry().ops:
        assert getattr(ops, op) is default_registry().spec(op).reference
    assert "matmul" in dir(ops)
    assert copy.copy(ops).matmul is ops.matmul


def test_every_op_states_a_contract_and_a_tolerance_or_equality() -> None:
    base = default_registry()
    for op in base.ops:
        assert len(base.spec(op).contract) > 20, op
    assert base.spec("matmul").tolerance == Tolerance(float32=1e-6, bfloat16=4e-3)
    assert base.spec("select_topk").tolerance is None
    assert {op for op in base.ops if base.spec(op).tolerance} >= {"sparse_attention", "hc_coefficients"}


def test_the_table_names_every_op_and_marks_the_choice() -> None:
    lines = table("cpu").splitlines()
    assert lines[0].split() == [
        "op", "provider", "arch", "priority", "deterministic", "batch-invariant", "graph-safe", "why",
    ]  # fmt: skip
    assert len(lines) == 1 + len(default_registry().ops)
    assert next(line for line in lines if line.startswith("matmul ")).split()[1:4] == ["*", "reference", "any"]
    missing = table("sm90", registry=registry(implementation())).splitlines()
    assert any(
        " ".join(line.split()) == "shift missing no implementation: whoever uses it must ask for shift=reference"
        for line in missing
    )
    with pytest.raises(ConfigError, match="backend is 'tpu'"):
        table("tpu")


def test_the_table_says_why_an_implementation_is_taken_or_not() -> None:
    entries = registry(
        implementation(priority=1, architectures=frozenset({"sm_90a"})),
        implementation(provider="deep_gemm", priority=2, architectures=frozenset({"sm_100a"})),
        implementation(provider="tile_kernels"),
    )

    def reasons(**options: Any) -> dict[str, str]:
        lines = [line.split() for line in table("sm90", entries, **options).splitlines() if line.startswith("scale ")]
        return {line[1 + (line[1] == "*")]: ("* " if line[1] == "*" else "") + " ".join(line[-6:]) for line in lines}

    found = reasons(architecture="sm_90a")
    assert found["deep_gemm"].endswith("built for sm_100a, not sm_90a")
    assert found["tilelang"].startswith("* ")
    assert found["tilelang"].endswith("highest priority of those that fit")
    assert found["tile_kernels"].endswith("fits, with less priority than tilelang")
    named = reasons(architecture="sm_90a", overrides={"scale": "reference"})
    assert named["reference"].startswith("* ")
    assert named["reference"].endswith("asked for by name")
    assert named["tilelang"].endswith("not reference")
    assert unserved_ops("sm90", entries, architecture="sm_90a") == ["shift"]
    assert unserved_ops("sm90", entries, True, architecture="sm_90a") == ["scale", "shift"]
    assert unserved_ops("sm90", entries, overrides={"scale": "tile_kernels"}) == ["shift"]
    assert unserved_ops("sm90", entries, overrides={"scale": "deep_gemm"}) == ["scale", "shift"]


def test_importing_the_package_initialises_no_device() -> None:
    code = "import thalweg.kernels, torch; print(torch.cuda.is_initialized())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_ops_do_not_share_state_between_bindings() -> None:
    one, other = bind("cpu"), bind("cpu", {"matmul": "reference"})
    x = torch.ones(2, 4)
    assert torch.equal(one.matmul(x, x), other.matmul(x, x))
    assert one.implementation("matmul") is other.implementation("matmul")
