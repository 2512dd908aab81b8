"""Making the training text, on small input and without a registry."""

from __future__ import annotations

import io
import json
import random
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tools.train.common.files import load_tokens
from tools.train.corpus import clean, documents, fetch, pack, streams, tokenizer
from tools.train.corpus.archives import members
from tools.train.corpus.clean import Deduplicator
from tools.train.corpus.documents import Document
from tools.train.corpus.notice import notice
from tools.train.corpus.repetitions import without_copies
from tools.train.corpus.sources import Source, read_sources

from thalweg.interfaces import ConfigError
from thalweg.model.engram_vocabulary import EngramVocabulary
from thalweg.tiny import checkpoint_path

SOURCE = Source(
    name="work",
    part="code",
    version="1.0",
    licence="MIT",
    registry="wheel",
    package="work==1.0",
    archive="work-1.0-py3-none-any.whl",
    sha256="0" * 64,
    texts=("work/*.py",),
    excluded=("work/generated/*",),
    licences=("*/LICENSE",),
)
LONG = "def f():\n" + "".join(f"    value_{number} = compute(number)\n" for number in "abcdefgh")


def write_wheel(folder: Path, files: dict[str, str]) -> Path:
    path = folder / SOURCE.archive
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def random_documents(count: int, source: str = "work code") -> list[Document]:
    words = random.Random(0).choices([f"{a}{b}_{a}" for a in "abcdefghij" for b in "éklmnopqrs"], k=100 * count)
    return [
        Document(source, f"{number}.py", "\n".join(words[100 * number : 100 * number + 100 - number % 7]))
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return tokenizer.train(random_documents(40), seed=0, size=300)


def test_every_source_is_pinned_to_an_archive_of_its_own() -> None:
    sources = read_sources()
    assert len({source.archive for source in sources}) == len(sources)
    for source in sources:
        assert len(source.sha256) == 64
        assert source.version in source.package
        assert source.licence
        assert not source.texts[0].startswith("*")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('version = "1"', "source 1: archive is missing"),
        ('versoin = "1"', "source 1: unknown key versoin"),
        (
            'archive = ""\nlicence = ""\npackage = ""\npart = ""\nsha256 = ""\ntexts = []\nversion = ""',
            "registry is npm",
        ),
    ],
)
def test_an_entry_of_the_list_that_is_none_is_named(tmp_path: Path, change: str, message: str) -> None:
    path = tmp_path / "sources.toml"
    path.write_text(f'[[source]]\nname = "work"\nregistry = "npm"\n{change}\n')
    with pytest.raises(ConfigError, match=message):
        read_sources(path)


def test_a_work_without_licence_texts_is_refused(tmp_path: Path) -> None:
    keys = ("name", "part", "version", "licence", "registry", "package", "archive", "sha256")
    lines = [f'{key} = "{getattr(SOURCE, key)}"' for key in keys]
    path = tmp_path / "sources.toml"
    path.write_text("\n".join(["[[source]]", *lines, "texts = []"]))
    with pytest.raises(ConfigError, match="no entry of work has `licences`"):
        read_sources(path)


def test_files_are_read_out_of_wheels_source_archives_and_debian_packages(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, {"work/a.py": "a"})
    assert list(members(wheel)) == [("work/a.py", b"a")]
    with tarfile.open(tmp_path / "work.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("work/b.py")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"b"))
        link = tarfile.TarInfo("work/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "b.py"
        tar.addfile(link)
    assert list(members(tmp_path / "work.tar.gz")) == [("work/b.py", b"b")]
    (tmp_path / "other.zip").touch()
    with pytest.raises(ConfigError, match=r"no \.whl, \.deb or \.tar\.gz"):
        list(members(tmp_path / "other.zip"))
    with pytest.raises(ConfigError, match="run the stage `fetch` first"):
        list(members(tmp_path / "absent.whl"))


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="only Debian has the tool")
def test_files_are_read_out_of_debian_packages(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text("Package: w\nVersion: 1\nArchitecture: all\nMaintainer: m\nDescription: d\n")
    (root / "usr").mkdir()
    (root / "usr/c.py").write_text("c")
    subprocess.run(["dpkg-deb", "--build", str(root), str(tmp_path / "w.deb")], check=True, capture_output=True)
    assert list(members(tmp_path / "w.deb")) == [("usr/c.py", b"c")]


def test_an_archive_that_is_there_is_checked_and_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a client ran"))
    (tmp_path / SOURCE.archive).write_bytes(b"")
    of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    fetch.fetch([replace(SOURCE, sha256=of_nothing)], tmp_path)
    with pytest.raises(ConfigError, match=f"SHA-256 is {of_nothing}; sources.toml pins 000"):
        fetch.fetch([SOURCE], tmp_path)


def test_another_archive_than_the_pinned_one_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def give_a_newer_one(command: list[str], cwd: str, **_: object) -> subprocess.CompletedProcess[str]:
        assert SOURCE.package in command
        (Path(cwd) / "work-1.1-py3-none-any.whl").touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", give_a_newer_one)
    with pytest.raises(ConfigError, match=r"gave work-1.1-py3-none-any.whl, not work-1.0.*pin in sources.toml"):
        fetch.fetch([SOURCE], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe" + LONG.encode(),  # no UTF-8
        b"short",
        b"x = [1, 22, 333]\n" * 20,  # data
        "слово = 'слово'\n".encode() * 20,
        LONG.encode() + b"\0",
    ],
)
def test_what_is_no_text_to_learn_from_is_dropped(content: bytes) -> None:
    assert clean.clean(content) is None


def test_tabs_line_ends_and_lines_of_data_are_made_even() -> None:
    text = LONG.replace("\n", "  \r\n") + "\tif x:\r" + "y" * 241 + "\n"
    assert clean.clean(text.encode()) == LONG + "        if x:\n"


def test_a_long_file_is_cut_after_a_whole_line() -> None:
    text = clean.clean(b"value = compute(value)\n" * 20_000)
    assert text is not None
    assert clean.MAX_BYTES - 23 < len(text) <= clean.MAX_BYTES
    assert text.endswith("compute(value)\n")


def test_a_long_paragraph_is_kept_once_whatever_its_indentation() -> None:
    indented = "".join(f"    {line}\n" for line in LONG.splitlines())
    deduplicator = Deduplicator()
    assert deduplicator.unique(f"x = 1\n\n\n{LONG}\n\ny = 2\n") == f"x = 1\n\n\n{LONG}\n\ny = 2\n"
    assert deduplicator.unique(f"x = 1\n\n\n{indented}\n\ny = 2\n") == "x = 1\n\n\ny = 2\n"


def test_folders_of_other_works_and_excluded_files_give_no_documents(tmp_path: Path) -> None:
    write_wheel(
        tmp_path,
        {"work/b.py": LONG}
        | {name: LONG.replace("value", name) for name in ("work/a.py", "work/_vendor/c.py", "work/generated/d.py")}
        | {"work/e.txt": LONG.replace("value", "e"), "work/f.py": LONG},
    )
    found = list(documents.read_source(SOURCE, tmp_path, Deduplicator()))
    assert [document.path for document in found] == ["work/a.py", "work/b.py"]  # f.py repeats b.py
    assert {document.source for document in found} == {"work code"}


def test_the_split_holds_out_a_share_of_every_source_by_name() -> None:
    items = random_documents(400)
    train, held_out = documents.split(items)
    assert sorted(train + held_out, key=items.index) == items
    size = sum(item.num_bytes for item in held_out) / sum(item.num_bytes for item in items)
    assert documents.HELD_OUT_SHARE <= size < documents.HELD_OUT_SHARE + 1 / 400 + 1e-3
    again = documents.split([replace(item, text=item.text.upper()) for item in items])[1]
    assert [item.path for item in again] == [item.path for item in held_out]
    other = documents.split([replace(item, source="other") for item in items])[1]
    assert [item.path for item in other] != [item.path for item in held_out]


def test_a_changed_copy_of_a_held_out_file_is_not_trained_on() -> None:
    lines = [f"value_{number} = compute_something(number, {number})" for number in range(20)]
    held_out = [Document("work code", "a.py", "\n".join(lines))]
    copy = Document("other code", "copy.py", "\n".join(f"    {line}" for line in [*lines[:8], *"xyz"]))
    some = Document("other code", "some.py", "\n".join([*lines[:6], *(f"{line}  # of others" for line in lines)]))
    few = Document("other code", "few.py", "\n".join(lines[:4]))
    assert without_copies([copy, some, few], held_out) == [some, few]


def test_what_is_measured_comes_from_the_first_works_alone() -> None:
    added = [source.training_only for source in read_sources()]
    assert added == sorted(added)  # a paragraph that both have stays in the first
    assert not all(added)


def test_a_stream_is_carried_in_files_that_give_it_back(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 4096, 2500, dtype=np.uint16)
    (tmp_path / "train-9.xz").touch()
    files = streams.compress(tokens, tmp_path, "train", max_tokens=1000)
    assert [file.name for file in files] == ["train-1.xz", "train-2.xz", "train-3.xz"]
    assert sorted(tmp_path.iterdir()) == files
    np.testing.assert_array_equal(load_tokens(tmp_path, "train"), tokens)


def test_documents_are_read_back_as_written(tmp_path: Path) -> None:
    items = random_documents(3)
    documents.write(items, tmp_path / "train.jsonl")
    assert documents.read(tmp_path / "train.jsonl") == items
    with pytest.raises(ConfigError, match="run the stage `clean` first"):
        documents.read(tmp_path / "absent.jsonl")


def test_the_notice_has_the_licence_without_what_binary_libraries_need(tmp_path: Path) -> None:
    write_wheel(tmp_path, {"work-1.0.dist-info/LICENSE": "Do as you like.\n----\nThis bundles:\nGPL\n"})
    source = replace(SOURCE, licence_ends="This bundles:")
    text = notice([source, replace(source, part="documentation", licences=())], tmp_path)
    assert "work 1.0  code           MIT\nwork 1.0  documentation  MIT\n" in text
    assert text.endswith("work 1.0: work-1.0.dist-info/LICENSE\n" + "=" * 80 + "\n\nDo as you like.\n")
    with pytest.raises(ConfigError, match="has no licence text"):
        notice([replace(source, licences=("*/COPYING",))], tmp_path)
    with pytest.raises(ConfigError, match="no licence text has the line 'It bundles:'"):
        notice([replace(source, licence_ends="It bundles:")], tmp_path)


def test_the_shipped_tokenizer_is_such_a_one_in_all_but_its_entries(trained: Tokenizer) -> None:
    ours = json.loads(trained.to_str())
    shipped = json.loads((checkpoint_path() / "tokenizer.json").read_text(encoding="utf-8"))
    for content in (ours, shipped):
        vocabulary = content["model"].pop("vocab")
        del content["model"]["merges"]
        assert [vocabulary[token] for token in tokenizer.SPECIAL] == [0, 1, 2, 3, 4]
    assert ours == shipped


def test_the_model_reads_the_trained_tokenizer(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(str(tmp_path / "tokenizer.json"))
    vocabulary = EngramVocabulary.from_tokenizer_file(tmp_path / "tokenizer.json")
    assert len(vocabulary.compressed_ids) == 300
    assert vocabulary.size < 300
    assert tokenizer.read(tmp_path / "tokenizer.json").get_vocab() == trained.get_vocab()
    with pytest.raises(ConfigError, match="run the stage `tokenizer` first"):
        tokenizer.read(tmp_path / "absent.json")


def test_the_same_text_and_seed_give_the_same_tokenizer_and_too_little_text_none(trained: Tokenizer) -> None:
    assert tokenizer.train(random_documents(40), seed=0, size=300).to_str() == trained.to_str()
    with pytest.raises(ConfigError, match="too little text"):
        tokenizer.train(random_documents(40), seed=0, size=4000)


def test_a_sample_ends_with_the_document_that_fills_it() -> None:
    items = random_documents(20)
    texts = tokenizer.sample(items, seed=1, num_bytes=3000)
    assert sum(len(text.encode()) for text in texts[:-1]) < 3000 <= sum(len(text.encode()) for text in texts)
    assert set(texts) < {item.text for item in items}
    assert texts != tokenizer.sample(items, seed=2, num_bytes=3000)


def test_a_stream_gives_back_every_document_and_counts_its_bytes(trained: Tokenizer) -> None:
    items = random_documents(30)
    stream = pack.pack(items, trained, seed=0)
    sizes = pack.token_bytes(trained)
    rows = pack.boundaries(stream)
    assert sorted(row["path"] for row in rows) == sorted(item.path for item in items)
    assert [row["path"] for row in rows] != [item.path for item in items]
    assert rows[-1]["end"] == len(stream.tokens)
    for row, item in zip(rows, stream.documents, strict=True):
        tokens = stream.tokens[row["start"] : row["end"]]
        assert (tokens[0], tokens[-1]) == (tokenizer.BOS, tokenizer.EOS)
        assert trained.decode(tokens.tolist()) == item.text
        assert sizes[tokens].sum() == row["bytes"] == len(item.text.encode())
    np.testing.assert_array_equal(pack.pack(items, trained, seed=0).tokens, stream.tokens)


def test_evaluation_windows_predict_no_token_twice() -> None:
    stream = np.arange(10 * pack.WINDOW + 1, dtype=np.uint16) + 5
    windows = pack.evaluation_windows(stream, seed=0, count=9)
    assert windows.shape == (9, pack.WINDOW + 1)
    assert windows.dtype == np.uint16
    assert (windows[:, 0] == tokenizer.BOS).all()
    assert len(np.unique(windows[:, 1:])) == 9 * pack.WINDOW
    assert (np.diff(windows[:, 1:].astype(int), axis=1) == 1).all()
    with pytest.raises(ConfigError, match="give 10 windows; 11 are needed"):
        pack.evaluation_windows(stream, seed=0, count=11)
