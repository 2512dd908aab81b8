import pytest

from thalweg.engine.profiling import ProfileRequest


def parse(query: str = "", body: bytes = b"") -> ProfileRequest:
    return ProfileRequest.parse(query, body, "/default")


def test_an_empty_request_has_the_defaults() -> None:
    assert parse() == ProfileRequest("/default", 20)
    assert parse(body=b"{}") == ProfileRequest("/default", 20)


def test_query_and_body_are_merged_and_the_body_wins() -> None:
    assert parse("num_steps=3&output_dir=%2Fa%20b") == ProfileRequest("/a b", 3)
    assert parse("num_steps=3&output_dir=/a", b'{"num_steps": 50}') == ProfileRequest("/a", 50)
    assert parse("num_steps=no", b'{"num_steps": 1}') == ProfileRequest("/default", 1)


@pytest.mark.parametrize(
    ("query", "body", "message"),
    [
        ("num_steps=0", b"", "num_steps is 0; it must be an integer from 1 to 50"),
        ("num_steps=51", b"", "num_steps is 51"),
        ("num_steps=2.0", b"", "num_steps is '2.0'"),
        ("num_steps=-1", b"", "num_steps is '-1'"),
        ("num_steps=99999999999999999999", b"", "num_steps is '99999"),
        ("num_steps=", b"", "num_steps is ''"),
        ("num_steps=true", b"", "num_steps is 'true'"),
        ("", b'{"num_steps": true}', "num_steps is True"),
        ("", b'{"num_steps": "5"}', "num_steps is '5'"),
        ("", b'{"num_steps": 5.0}', "num_steps is 5.0"),
        ("", b'{"num_steps": null}', "num_steps is None"),
        ("", b'{"output_dir": 5}', "output_dir is 5; it must be a path"),
        ("", b'{"output_dir": false}', "output_dir is False"),
        ("output_dir=", b"", "output_dir is ''"),
        ("output_dir=%00", b"", "output_dir is"),
        ("steps=5", b"", "unknown field 'steps'; known are output_dir and num_steps"),
        ("", b'{"dir": "/a"}', "unknown field 'dir'"),
        ("num_steps=1&num_steps=2", b"", "a field is given twice"),
        ("", b'{"num_steps": 1, "num_steps": 2}', "a field is given twice"),
        ("num_steps", b"", "bad query field"),
        ("", b"[1]", "the body is .*; it must be a JSON object"),
        ("", b"{", "the body is not valid JSON"),
        ("", b"\xff", "the body is not valid JSON"),
        ("", b"[" * 100_000, "the body is not valid JSON"),
    ],
)
def test_anything_else_is_refused_with_the_field_and_what_it_may_be(query: str, body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(query, body)
