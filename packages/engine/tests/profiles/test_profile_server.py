"""Over real HTTP, with a loop on another thread in the part of the engine."""

import http.client
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg.engine.profiling import ProfileServer, StepProfiler


class Session:
    """Records what is done to it, and on which thread; its trace is a text of that."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.may_export = threading.Event()
        self.may_export.set()

    def start(self) -> None:
        self.calls.append(("start", threading.get_ident()))

    def stop(self) -> None:
        self.calls.append(("stop", threading.get_ident()))

    def export(self, path: str) -> None:
        self.may_export.wait(10)
        self.calls.append(("export", threading.get_ident()))
        Path(path).write_text("trace")


class Bench:
    """A server on a free port, its session, and clients on threads."""

    def __init__(self, output_dir: Path) -> None:
        self.session = Session()
        self.output_dir = output_dir
        self.pool = ThreadPoolExecutor()
        self.servers: list[ProfileServer] = []

    def serve(self, **options: Any) -> ProfileServer:
        options.setdefault("make_session", lambda: self.session)
        server = ProfileServer.start(0, output_dir=str(self.output_dir), device="gpu3", rank=5, **options)
        assert server is not None
        self.servers.append(server)
        return server

    def ask(self, *request: Any, **options: Any) -> "Future[tuple[int, dict[str, str]]]":
        return self.pool.submit(fetch, self.servers[-1].port, *request, **options)

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.pool.shutdown()


def fetch(port: int, method: str = "POST", target: str = "/profile", body: bytes | None = None, **headers: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def eventually(condition: Callable[[], object], work: Callable[[], object] = lambda: None) -> None:
    """Do the work until the condition holds."""
    deadline = time.monotonic() + 60  # torch takes long to start a trace where many processes share the cores
    while not condition():
        assert time.monotonic() < deadline
        work()
        time.sleep(0.001)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "traces")
    yield bench
    bench.close()


def test_a_profile_covers_the_asked_number_of_steps_and_names_its_file(bench: Bench) -> None:
    server = bench.serve()
    answer = bench.ask("GET", "/profile?num_steps=3")
    eventually(lambda: bench.session.calls, server.tick)
    server.tick()
    server.tick()
    assert [call for call, _ in bench.session.calls] == ["start"]
    server.tick()  # three steps have passed between the first tick and this one
    status, document = answer.result(10)
    assert status == 200
    path = Path(document["path"])
    assert path.read_text() == "trace"
    assert path.parent == bench.output_dir
    prefix, _, suffix = path.name.partition("-gpu3-rank5-")
    assert prefix.startswith("profile-")
    assert suffix.endswith(".json")
    calls = dict(bench.session.calls)
    assert calls["start"] == calls["stop"] == threading.get_ident()
    assert calls["export"] != threading.get_ident()


def test_another_directory_can_be_asked_for(bench: Bench, tmp_path: Path) -> None:
    server = bench.serve()
    wanted = tmp_path / "a" / "b"
    answer = bench.ask(body=json.dumps({"output_dir": str(wanted), "num_steps": 1}).encode())
    eventually(answer.done, server.tick)
    assert Path(answer.result()[1]["path"]).parent == wanted


def test_a_second_profile_is_refused_while_one_is_queued_running_or_exported(bench: Bench) -> None:
    server = bench.serve()
    bench.session.may_export.clear()
    first = bench.ask("POST", "/profile?num_steps=1")
    eventually(lambda: server._profiler._job)
    assert fetch(server.port) == (409, {"error": "a profile is queued; there can be one at a time"})
    server.tick()
    assert fetch(server.port) == (409, {"error": "a profile is running; there can be one at a time"})
    server.tick()
    assert fetch(server.port) == (409, {"error": "a profile is exporting; there can be one at a time"})
    bench.session.may_export.set()
    assert first.result(10)[0] == 200
    again = bench.ask("POST", "/profile?num_steps=1")
    eventually(again.done, server.tick)
    assert again.result()[0] == 200


def test_a_profile_that_no_step_picks_up_is_cancelled(bench: Bench) -> None:
    server = bench.serve(pickup_timeout_s=0.05)
    status, document = fetch(server.port)
    assert (status, document["error"]) == (503, "the engine ran no step within 0.05 s; nothing is profiled")
    server.tick()
    assert bench.session.calls == []


def test_a_profile_that_does_not_finish_is_stopped_by_the_next_step(bench: Bench) -> None:
    server = bench.serve(finish_timeout_s=0.2)
    answer = bench.ask("POST", "/profile?num_steps=5")
    eventually(lambda: bench.session.calls, server.tick)
    server.tick()
    status, document = answer.result(10)
    assert status == 503
    assert "did not finish within 0.2 s; 4 of 5 steps are missing" in document["error"]
    server.tick()
    assert [call for call, _ in bench.session.calls] == ["start", "stop"]
    again = bench.ask("POST", "/profile?num_steps=1")
    eventually(again.done, server.tick)
    assert again.result()[0] == 200


def test_closing_the_engine_ends_a_profile(bench: Bench) -> None:
    server = bench.serve()
    answer = bench.ask()
    eventually(lambda: bench.session.calls, server.tick)
    server._profiler.close()
    assert answer.result(10) == (500, {"error": "the engine was closed"})
    assert [call for call, _ in bench.session.calls] == ["start", "stop"]
    assert fetch(server.port) == (500, {"error": "the engine is closed"})


@pytest.mark.parametrize("failing", ["make", "start", "stop", "export"])
def test_a_profiler_that_fails_is_an_answer_and_steps_go_on(bench: Bench, failing: str) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no luck")

    if failing != "make":
        setattr(bench.session, failing, fail)
    server = bench.serve(make_session=fail if failing == "make" else lambda: bench.session)
    answer = bench.ask("POST", "/profile?num_steps=1")
    eventually(answer.done, server.tick)
    status, document = answer.result()
    assert status == 500
    assert "no luck" in document["error"]
    server.tick()


def test_bad_fields_are_refused_before_anything_is_queued(bench: Bench) -> None:
    server = bench.serve()
    assert fetch(server.port, "GET", "/profile?steps=1")[0] == 400
    assert fetch(server.port, body=b'{"num_steps": true}') == (
        400,
        {"error": "num_steps is True; it must be an integer from 1 to 50"},
    )
    assert server._profiler._job is None


def test_a_directory_that_cannot_be_made_is_refused(bench: Bench, tmp_path: Path) -> None:
    server = bench.serve()
    (tmp_path / "file").write_text("")
    status, document = fetch(server.port, body=json.dumps({"output_dir": str(tmp_path / "file" / "x")}).encode())
    assert status == 400
    assert document["error"].startswith("output_dir cannot be used")


def test_other_paths_and_unreadable_bodies_are_refused(bench: Bench) -> None:
    server = bench.serve()
    assert fetch(server.port, "GET", "/")[0] == 404
    assert fetch(server.port, body=b"{}", Content_Length="two")[0] == 400
    assert fetch(server.port, body=b"", Content_Length=str(1 << 20))[0] == 413
    assert fetch(server.port, body=b"", Content_Length="9" * 5000)[0] == 413
    assert fetch(server.port, body=b"", Transfer_Encoding="chunked")[0] == 400


def test_a_client_that_leaves_before_its_answer_is_nothing_to_report(
    bench: Bench, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    port = bench.serve(pickup_timeout_s=0.3).port
    with caplog.at_level(logging.DEBUG):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leave without a goodbye
            client.sendall(b"POST /profile HTTP/1.1\r\n\r\n")
        eventually(lambda: "a request was not answered" in caplog.text)
    assert all(record.levelno < logging.WARNING for record in caplog.records)
    assert capfd.readouterr().err == ""


def test_a_port_in_use_only_turns_the_server_off(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    port = bench.serve().port
    with caplog.at_level(logging.WARNING):
        assert ProfileServer.start(port) is None
        assert ProfileServer.start(70000) is None
    assert len(caplog.records) == 2
    assert f"the profile server is off: port {port} cannot be used" in caplog.records[0].getMessage()


def test_a_tick_without_a_request_does_nothing() -> None:
    StepProfiler(lambda: pytest.fail("no session was asked for")).tick()


def test_the_torch_trace_has_the_work_of_every_thread(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    server = ProfileServer.start(0, output_dir=str(tmp_path))
    assert server is not None
    bench.servers.append(server)
    worker = ThreadPoolExecutor(1)
    worker.submit(torch.ones, 3).result()
    answer = bench.ask("POST", "/profile?num_steps=2")

    def step() -> None:
        server.tick()
        torch.ones(4).cumsum(0)
        worker.submit(lambda: torch.ones(4).cumprod(0)).result()

    eventually(answer.done, step)
    status, document = answer.result()
    bench.close()
    assert status == 200, document
    names = {event.get("name") for event in json.loads(Path(document["path"]).read_text())["traceEvents"]}
    assert {"aten::cumsum", "aten::cumprod"} <= names
    assert [path.name for path in tmp_path.iterdir()] == [Path(document["path"]).name]
