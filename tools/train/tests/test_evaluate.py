"""The evaluation of trained checkpoints measures the model itself, and what it replaces does what it says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tools.train.common.resume import save_resume_point
from tools.train.evaluate import ablations, attention_mass, long_context, ops, routing
from tools.train.evaluate.__main__ import main
from tools.train.evaluate.models import Subject
from tools.train.evaluate.report import Figure
from tools.train.evaluate.runner import forward, token_losses
from tools.train.evaluate.samples import continuations
from tools.train.evaluate.serving import draft_figures, serve_windows
from tools.train.evaluate.windows import Windows

from thalweg.dspark import ConfidenceRecords
from thalweg.engine import LLM, SamplingParams
from thalweg.interfaces import ConfigError
from thalweg.model import Model, TensorSpec, tensor_specs, write_random_checkpoint
from thalweg.model.tiny import small_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evaluated") / "checkpoint"
    write_random_checkpoint(path, small_config(index_topk=24), seed=3)
    return path


@pytest.fixture(scope="module")
def subject(checkpoint: Path) -> Subject:
    return Subject.open(checkpoint, "cpu")


@pytest.fixture(scope="module")
def windows(checkpoint: Path) -> Windows:
    drawn = np.random.default_rng(0).integers(5, 512, (3, 121)).astype(np.uint16)
    np.save(checkpoint / "evaluation.npy", drawn)
    return Windows.read(checkpoint, checkpoint)


@pytest.mark.parametrize("mode", ["plain", "quant"])
def test_the_fast_ops_give_the_logits_of_the_model(
    checkpoint: Path, subject: Subject, windows: Windows, mode: str
) -> None:
    """In exact arithmetic: there the order of a sum can hardly be seen."""
    rows = list(windows.tokens)
    expected = torch.cat(Model.load(checkpoint, mode).forward_sequences(rows))
    model = subject.model(mode, arithmetic="exact")
    torch.testing.assert_close(model.logits(forward(model, rows)), expected, atol=1e-5, rtol=0)


def test_losses_are_those_that_the_engine_tells(checkpoint: Path, subject: Subject, windows: Windows) -> None:
    own = token_losses(subject.model("quant", arithmetic="exact"), windows.tokens, CPU).mean(1)
    told = serve_windows(checkpoint, windows.tokens.numpy().astype(np.uint16), "quant", "exact")
    assert told.losses == pytest.approx(own.tolist(), abs=1e-5)


def test_master_weights_are_taken_as_they_are(subject: Subject, windows: Windows, tmp_path: Path) -> None:
    """A resume point of what the checkpoint's codes stand for gives the losses of the checkpoint."""
    specs = [spec for spec in tensor_specs(subject.config) if not spec.is_scale]
    save_resume_point(tmp_path, {spec.name: stored_values(subject, spec) for spec in specs}, {})
    own = token_losses(subject.model("plain"), windows.tokens, CPU)
    masters = token_losses(subject.with_masters(tmp_path).model("plain"), windows.tokens, CPU)
    torch.testing.assert_close(masters, own)


def stored_values(subject: Subject, spec: TensorSpec) -> torch.Tensor:
    if spec.format in ("bf16", "f32"):
        return subject.source.tensor(spec.name)
    op = {"fp8": "dequantize_fp8_weight", "fp4": "dequantize_mxfp4", "engram": "dequantize_mxfp8"}[spec.format]
    values: torch.Tensor = ops.reference(op)(*subject.source.quantized(spec.name.removesuffix(".weight")))
    return values


def test_bytes_of_windows_are_those_of_their_text(checkpoint: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    texts = [f"def f_{number}(é): return 'ß'\n" for number in range(3)]
    stored = np.array([[0, *tokenizer.encode(text, add_special_tokens=False).ids] for text in texts], dtype=np.uint16)
    np.save(tmp_path / "evaluation.npy", stored)
    shutil.copy(checkpoint / "tokenizer.json", tmp_path)
    assert Windows.read(tmp_path, checkpoint).num_bytes == sum(len(text.encode()) for text in texts)


def test_windows_of_another_tokenizer_are_refused(checkpoint: Path, windows: Windows, tmp_path: Path) -> None:
    shutil.copy(checkpoint / "evaluation.npy", tmp_path)
    with pytest.raises(ConfigError, match=r"tokenizer\.json does not exist"):
        Windows.read(tmp_path, checkpoint)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.add_tokens(["another"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="another tokenizer"):
        Windows.read(tmp_path, checkpoint)


@pytest.mark.parametrize("limit", [0, 4])
def test_more_windows_than_there_are_are_refused(checkpoint: Path, windows: Windows, limit: int) -> None:
    with pytest.raises(ConfigError, match=f"--windows is {limit}"):
        Windows.read(checkpoint, checkpoint, limit)


def test_selections_that_stand_in_for_the_indexer() -> None:
    scores, visible = torch.zeros(3, 6), torch.tensor([0, 2, 6])
    assert ablations.most_recent(scores, visible, 3).tolist() == [[-1, -1, -1], [0, 1, -1], [3, 4, 5]]
    assert ablations.all_visible(scores, visible, 3)[1].tolist() == [0, 1, -1, -1, -1, -1]
    drawn = ablations.random_entries(scores, visible, 3)
    assert drawn[1].tolist() == [0, 1, -1]
    assert (drawn[2] >= 0).all()


def test_the_command_writes_every_figure_and_every_replacement_costs_something(
    checkpoint: Path, windows: Windows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, data = tmp_path / "report.json", checkpoint
    measures = ("losses", "ablations", "routing")
    command = ["evaluate", "--checkpoint", checkpoint, "--data", data, "--out", out, "--windows", 1, "--measures"]
    monkeypatch.setattr("sys.argv", [str(word) for word in (*command, *measures, "--device", "cpu")])
    main()
    report = json.loads(out.read_text())
    told = {(figure["measure"], figure["name"]): figure for figure in reversed(report["figures"])}
    for name in ablations.replacements():
        assert abs(told["ablations", name]["value"]) > 1e-6, name
    assert report["stored weights, plain, by window"] == [told["losses", "stored weights, plain"]["value"]]
    assert sum(measure == "routing" for measure, _ in told) == 2 * 8
    assert all("1 windows of 120, 120 tokens" in figure["over"] for figure in told.values())


def test_a_context_without_a_past_costs_what_a_restart_does(subject: Subject) -> None:
    """Of a document that begins with BOS the first segment is its own restart; later ones are not."""
    document = torch.randint(5, 512, (1, 97), generator=torch.Generator().manual_seed(0))
    document[0, 0] = subject.config.bos_token_id
    figures = {figure.name: figure.value for figure in long_context.measure(subject, document, segment=48)}
    assert figures["from 0, against a restart"] == pytest.approx(0, abs=1e-5)
    assert abs(figures["from 48, against a restart"]) > 1e-3
    halves = [figures[f"from 48, against a restart, {half} half"] for half in ("first", "second")]
    assert sum(halves) / 2 == pytest.approx(figures["from 48, against a restart"], abs=1e-5)


def test_a_selection_of_everything_keeps_all_that_a_selection_can(subject: Subject, windows: Windows) -> None:
    meter = attention_mass.MassMeter(subject.config.sliding_window, first_position=20)
    replaced: dict[str, ops.Op] = {"sparse_attention": meter, "select_topk": ablations.all_visible}
    attention_mass.run(subject.model("plain", replaced), meter, windows.tokens, CPU)
    assert sorted(meter.sums) == [2, 3, 4, 5, 6, 7]
    for layer, sums in meter.sums.items():
        assert meter.num_rows[layer] == 3 * (windows.tokens.shape[1] - 20)
        torch.testing.assert_close(sums / meter.num_rows[layer], torch.ones(4, dtype=torch.float64))


def test_mass_is_that_of_the_attention_itself(subject: Subject, windows: Windows) -> None:
    """With values that are 1 for entries and 0 for the window, attention over everything gives the mass of entries."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Checked(attention_mass.MassMeter):
        def _measure(self, q: torch.Tensor, keys: torch.Tensor, indices: torch.Tensor, sink: torch.Tensor) -> None:
            assert self.memory is not None
            assert self.memory.visible is not None
            begin, end = self.memory.visible
            row = 100
            own = keys[len(q) :][int(begin[row]) : int(end[row])]
            mass = self._mass(q[row : row + 1], keys, indices[row : row + 1], own, (end - begin)[row : row + 1], sink)
            window = keys[indices[row, : self._window_size]]
            logits = torch.cat([torch.cat([window, own]) @ q[row].t(), sink[None]])
            seen.append((mass[0], logits.softmax(0)[len(window) : -1].sum(1)))

    meter = Checked(subject.config.sliding_window)
    attention_mass.run(subject.model("plain", {"sparse_attention": meter}), meter, windows.tokens[:1], CPU)
    assert len(seen) == 6
    for mass, expected in seen:
        torch.testing.assert_close(mass, expected)


def test_shares_of_mass_by_hand() -> None:
    mass = torch.tensor([[0.1, 0.4, 0.0, 0.3, 0.2]])
    told = attention_mass.shares(mass, torch.tensor([[0, 1, -1]]), torch.tensor([5]))
    assert told[0].tolist() == pytest.approx([0.5, 0.9, 0.5, 1 / 3])


def test_loads_count_every_row_of_every_layer(subject: Subject, windows: Windows) -> None:
    loads = routing.ExpertLoads(subject.config.n_routed_experts)
    token_losses(subject.model("plain"), windows.tokens, CPU, loads)
    assert sorted(loads.loads) == list(range(8))
    assert {int(counts.sum()) for counts in loads.loads.values()} == {windows.num_tokens * 2}
    assert routing.skew(torch.tensor([1.0, 3.0])) == 1.5
    assert routing.evenness(torch.tensor([2.0, 2.0, 2.0])) == pytest.approx(1)


def test_restarts_predict_the_tokens_of_the_documents() -> None:
    documents = torch.arange(10, 44).view(2, 17)
    windows = long_context.restarts(documents, 4, bos=0)
    assert windows.shape == (8, 5)
    assert windows[:, 0].eq(0).all()
    assert windows[:, 1:].flatten().tolist() == documents[:, 1:].flatten().tolist()


def test_documents_are_read_from_the_stream_if_they_are_long_enough(tmp_path: Path) -> None:
    np.save(tmp_path / "held_out.npy", np.arange(30, dtype=np.uint16))
    spans = [(0, 8), (8, 17), (17, 30)]
    (tmp_path / "held_out.json").write_text(json.dumps([{"start": start, "end": end} for start, end in spans]))
    assert long_context.read_documents(tmp_path, 8).tolist() == [list(range(8, 17)), list(range(17, 26))]


def test_the_likeliest_continuations_are_those_of_the_engine(checkpoint: Path, subject: Subject) -> None:
    prompts = [[0, 17, 40], [0, 200, 301, 5, 77]]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(str(checkpoint), max_model_len=64) as llm:
        outputs = llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)
    model = subject.model("quant", arithmetic="exact")
    texts = continuations(model, [torch.tensor(prompt) for prompt in prompts], 12, 0.0)
    assert [text.tolist() for text in texts] == [list(output.outputs[0].token_ids) for output in outputs]


def test_figures_of_drafts_count_those_whose_predecessors_held() -> None:
    confidences = np.array([[0.9, 0.8], [0.7, 0.6], [0.5, np.nan], [0.3, 0.2]])
    told = draft_figures(ConfidenceRecords(confidences, np.array([2, 1, 1, 0])))
    assert told.tokens_per_step == 2.0
    assert told.num_drafts == [4, 2]
    assert told.acceptance == [0.75, 0.5]
    assert told.confidence == pytest.approx([0.6, 0.7])
    assert told.calibration_error == pytest.approx([(0.1 + 0.3 + 0.5 + 0.3) / 4, (0.2 + 0.6) / 2])


@pytest.mark.parametrize(("value", "verdict"), [(0.7, "kept: <= 0.72"), (0.73, "MISSED: <= 0.72")])
def test_a_figure_says_whether_it_keeps_its_bound(value: float, verdict: str) -> None:
    assert Figure("losses", "stored", value, "bits/byte", "a set", most=0.72).verdict == verdict
