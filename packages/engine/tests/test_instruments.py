"""What watches the engine, on a real step loop: it sees every step and can stop none."""

import http.client
import json
import logging
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_testing.bench import Bench, params

from thalweg.engine import LLM, EngineConfig, RequestOutput
from thalweg.engine.assembly import build_engine
from thalweg.engine.instruments import Instruments
from thalweg.engine.statistics import Capacity, StepRecord
from thalweg.engine.statistics_config import StatisticsConfig
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import ConfigError, StepKind
from thalweg.scheduler import Scheduler, reference

CAPACITY = Capacity(max_num_seqs=4, num_blocks=41, num_state_slots=6)


@pytest.fixture(
    params=[(Scheduler, False), (Scheduler, True), (reference.Scheduler, True)], ids=["sync", "async", "reference"]
)
def bench(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Bench:
    core, is_async = request.param
    return Bench(tokenizer, core=core, async_scheduling=is_async)


def equip(bench: Bench, **options: Any) -> Instruments:
    bench.engine.instruments = Instruments.build(StatisticsConfig(**options), CAPACITY, model_name="scripted")
    return bench.engine.instruments


def test_a_callback_that_raises_stops_no_step_and_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("the dashboard is down")

    bench.engine.statistics.on_step(broken)
    bench.engine.statistics.on_finish(broken)
    for name in "ab":
        bench.engine.add_request(name, "xyz", params(max_tokens=5))
    finals = bench.drain()
    assert [finals[name].outputs[0].text for name in "ab"] == ["abcde", "abcde"]
    assert bench.engine.failure is None
    assert sum("the dashboard is down" in str(record.exc_info) for record in caplog.records) == 2


def test_every_step_is_recorded_in_order_with_its_first_tokens_and_times(bench: Bench) -> None:
    records: list[StepRecord] = []
    bench.engine.statistics.on_step(records.append)
    for name in "abc":
        bench.engine.add_request(name, "xyz", params(max_tokens=4))
    bench.drain()
    assert [record.plan.step for record in records] == list(range(len(records)))
    first_tokens = [ms for record in records for ms in record.first_token_ms]
    assert len(first_tokens) == 3
    assert all(ms > 0 for ms in first_tokens)
    assert records[0].plan.kind is StepKind.PREFILL
    for record in records:
        if record.plan.sequence_ids.size:
            assert record.step_ms > 0
    assert bench.engine.statistics.totals.num_output_tokens == 12


def test_every_request_is_reported_as_finished_once_however_it_ends(bench: Bench) -> None:
    finished: list[RequestOutput] = []
    bench.engine.statistics.on_finish(finished.extend)
    bench.engine.add_request("length", "xyz", params(max_tokens=2))
    bench.engine.add_request("stop", "xyz", params(max_tokens=9, stop=("c",)))
    bench.engine.add_request("abort", "xyz", params(max_tokens=9))
    bench.step()
    bench.engine.abort_request("abort")
    bench.drain()
    reasons = {output.request_id: output.outputs[0].finish_reason for output in finished}
    assert reasons == {"length": "length", "stop": "stop", "abort": "abort"}
    assert len(finished) == 3


def test_metrics_agree_with_what_the_engine_returned(bench: Bench) -> None:
    metrics = equip(bench, metrics=True).metrics
    assert metrics is not None
    for name in "abc":
        bench.engine.add_request(name, "xyz", params(max_tokens=4))
    bench.drain()
    labels = {"model_name": "scripted", "engine": "0"}

    def value(name: str, **more: str) -> float | None:
        return metrics.registry.get_sample_value(f"thalweg:{name}", labels | more)

    assert value("generation_tokens_total") == 12
    assert value("prompt_tokens_total") == 12
    assert value("request_success_total", finished_reason="length") == 3
    assert value("time_to_first_token_seconds_count") == 3
    assert value("inter_token_latency_seconds_count") == 9
    assert value("e2e_request_latency_seconds_count") == 3
    assert value("num_requests_running") == 0


def test_the_periodic_line_comes_from_a_thread_of_its_own(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    equip(bench, logging_interval_steps=2)
    with caplog.at_level(logging.INFO, "thalweg.engine.statistics"):
        bench.engine.add_request("a", "xyz", params(max_tokens=5))
        bench.drain()
        bench.engine.close()
    lines = [record for record in caplog.records if record.name == "thalweg.engine.statistics"]
    assert lines[0].getMessage().startswith("step 0 (prefill): ")
    assert lines[1].getMessage().startswith("step 2 (decode): ")
    assert all(line.thread != threading.get_ident() for line in lines)


def test_without_log_stats_no_line_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    equip(bench, log_stats=False, logging_interval_steps=1)
    with caplog.at_level(logging.INFO, "thalweg.engine.statistics"):
        bench.engine.add_request("a", "xyz", params(max_tokens=5))
        bench.drain()
        bench.engine.close()
    assert caplog.records == []


def test_a_running_engine_writes_a_profile_that_is_asked_for_over_http(checkpoint: str, tmp_path: Path) -> None:
    def ask(port: int) -> tuple[int, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", "/profile", json.dumps({"num_steps": 2}))
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    options = {"max_num_seqs": 2, "max_model_len": 256, "profile_port": 0, "profile_dir": str(tmp_path)}
    with LLM(checkpoint, **options) as llm, ThreadPoolExecutor(1) as pool:
        server = llm.engine.instruments.profile_server
        assert server is not None
        answer = pool.submit(ask, server.port)
        deadline = time.monotonic() + 120  # torch takes long to start a trace where many processes share the cores
        while not answer.done() and time.monotonic() < deadline:
            llm.generate(prompt_token_ids=[5, 6, 7], sampling_params=params(max_tokens=4), use_tqdm=False)
        status, document = answer.result(60)
    assert status == 200, document
    path = Path(document["path"])
    assert path.parent == tmp_path
    assert "-cpu0-rank0-" in path.name
    events = json.loads(path.read_text())["traceEvents"]
    assert any(str(event.get("name")).startswith("aten::") for event in events)


def test_offline_generation_logs_no_line_unless_it_is_asked_to(checkpoint: str) -> None:
    options: dict[str, Any] = {"max_num_seqs": 2, "max_model_len": 256}
    with LLM(checkpoint, **options) as llm:
        assert not llm.engine.instruments.options.log_stats
        assert llm.engine.instruments.profile_server is None
        assert llm.engine.instruments.metrics is None
    with LLM(checkpoint, log_stats=True, **options) as llm:
        assert llm.engine.instruments.options.log_stats
    with build_engine(EngineConfig.build(model=checkpoint, **options)) as engine:
        assert engine.instruments.options.log_stats


def test_utilisation_is_shown_once_the_peak_is_known(checkpoint: str) -> None:
    with LLM(checkpoint, max_num_seqs=2, max_model_len=256, peak_tflops=1.0, metrics=True) as llm:
        llm.generate(prompt_token_ids=[5, 6, 7], sampling_params=params(max_tokens=6), use_tqdm=False)
        figures = llm.engine.statistics.figures()
        assert figures is not None
        assert figures.mfu is not None
        assert 0 < figures.mfu < 1
        assert figures.load.kv_usage is not None
        assert 0 < figures.load.kv_usage < 1  # what ended with the last plan is freed after it
        assert llm.engine.instruments.metrics is not None


def test_metrics_without_the_extra_are_refused_before_the_weights_are_loaded(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "thalweg.engine.statistics.prometheus", raising=False)
    monkeypatch.setattr("thalweg.model.Model.load", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(ConfigError, match="metrics is True; it needs the package prometheus_client"):
        LLM(checkpoint, metrics=True, max_model_len=256)
