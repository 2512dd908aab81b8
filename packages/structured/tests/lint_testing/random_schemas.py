"""Random schemas with every keyword, most of them in combinations that somebody might write."""

from __future__ import annotations

from random import Random
from typing import Any

_TEXTS = ("a", "谷", '"q"', "\\", "\n", "", " ", "é😀", "\u2028\x7f")
_NUMBERS = (0, 1, -5, 10**12, 2**63, 1.5, -0.25, 1e30, 1.0, 0.1)
_CLASSES = ("[a-z]", "[^a]", "[0-9a-f]", r"[\w-]", '[ab"]', "[A-Z_]", "[!-~]", "[谷-豈]", r"[\]a]", "[-a]", r'[^"\\]')
_NAMES = ("a", "b", "x-1", "xy", "谷", "", 'q"', "a b")


def document(rng: Random) -> Any:
    """A schema, with definitions if anything refers to them."""
    root = _schema(rng, 3)
    if isinstance(root, dict) and "$ref" in str(root):
        root["$defs"] = {"p": _schema(rng, 2), "q": _schema(rng, 1)}
    return root


def _schema(rng: Random, depth: int) -> Any:
    makers = [_scalar] * 4
    if depth:
        makers += [_object] * 4 + [_array] * 2 + [_branches, _reference]
    return rng.choice(makers)(rng, depth)


def _scalar(rng: Random, depth: int) -> Any:
    makers = [_integer] * 3 + [_number] * 3 + [_string] * 4 + [_written] * 2 + [_simple] * 2
    schema = rng.choice(makers)(rng)
    if isinstance(schema, dict) and rng.random() < 0.05:
        schema[rng.choice(["minLength", "minimum", "title"])] = 3
    return schema


def _integer(rng: Random) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if rng.random() < 0.3:
            schema[word] = rng.choice([rng.randint(-20, 20), rng.randint(-(10**7), 10**7), 0, 1])
    if rng.random() < 0.3:
        schema["multipleOf"] = rng.choice([1, 2, 3, 7, 10, 64, 1000, 1.5])
    return schema


def _number(rng: Random) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "number"}
    for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if rng.random() < 0.3:
            digits = rng.randint(0, 6)
            schema[word] = rng.choice(
                [rng.randint(-20, 20), round(rng.uniform(-10, 10), digits), rng.uniform(-1e5, 1e5)]
            )
    return schema


def _string(rng: Random) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for word, most in (("minLength", 4), ("maxLength", 6)):
        if rng.random() < 0.3:
            schema[word] = rng.randint(0, most)
    if rng.random() < 0.4:
        schema["pattern"] = pattern(rng)
    if rng.random() < 0.1:
        schema["format"] = rng.choice(["date", "email", "uuid", "ipv4", "color"])
    return schema


def _written(rng: Random) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"const": _value(rng, 2)}
    return {"enum": [_value(rng, 2) for _ in range(rng.randint(1, 4))]}


def _simple(rng: Random) -> Any:
    return rng.choice(
        [
            {},
            True,
            {"type": rng.choice(["boolean", "null", "string"])},
            {"type": ["integer", "null"], "minimum": 3},
            {"type": ["string", "number"], "maxLength": 3, "minimum": 1.5},
        ]
    )


def _value(rng: Random, depth: int) -> Any:
    kind = rng.randrange(7 if depth else 5)
    if kind == 5:
        return [_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if kind == 6:
        return {rng.choice("abc"): _value(rng, depth - 1) for _ in range(rng.randint(0, 2))}
    return rng.choice([rng.choice(_NUMBERS), rng.choice(_TEXTS), rng.random() < 0.5, None, rng.randint(-9, 9)])


def pattern(rng: Random) -> str:
    """Mostly anchored."""
    text = _alternatives(rng, 2)
    if rng.random() < 0.2:
        return text
    return f"^({text})$" if "|" in text else f"^{text}$"


def _alternatives(rng: Random, depth: int) -> str:
    return "|".join(_run(rng, depth) for _ in range(rng.choice([1, 1, 1, 2])))


def _run(rng: Random, depth: int) -> str:
    run = ""
    for _ in range(rng.randint(1, 3)):
        run += _atom(rng, depth)
        if rng.random() < 0.35 and run[-1] not in "^$":
            run += rng.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"])
    return run


def _atom(rng: Random, depth: int) -> str:
    kinds = [rng.choice('abcx01_- /é谷.,:"'), rng.choice([r"\d", r"\w", r"\.", r"\-", r"\/", r"\u8c37", r"\x41"])]
    kinds += [rng.choice(_CLASSES), ".", rng.choice("abc"), rng.choice("abc")]
    if depth:
        kinds += [rng.choice(["(", "(?:"]) + _alternatives(rng, depth - 1) + ")"]
    return rng.choice([*kinds, rng.choice(["^", "$", r"\\", r"\n"]) if rng.random() < 0.1 else "q"])


def _object(rng: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    names = rng.sample(_NAMES, rng.randint(0, 3))
    if names or rng.random() < 0.3:
        schema["properties"] = {name: _schema(rng, depth - 1) for name in names}
    if rng.random() < 0.5:
        schema["required"] = rng.sample(names, rng.randint(0, len(names))) + (["zz"] if rng.random() < 0.05 else [])
    for word, share in (("additionalProperties", 0.3), ("unevaluatedProperties", 0.05)):
        if rng.random() < share:
            schema[word] = rng.choice([False, True, _schema(rng, depth - 1)])
    if rng.random() < 0.2:
        patterns = [
            rng.choice(["^x-", "^y$", "^[ab]+$", "^x-[a-z]{1,3}$", pattern(rng)]) for _ in range(rng.choice([1, 2]))
        ]
        schema["patternProperties"] = {text: _schema(rng, depth - 1) for text in patterns}
    if rng.random() < 0.1:
        schema["propertyNames"] = rng.choice([{"pattern": pattern(rng)}, {"enum": ["a", "b"]}, {"maxLength": 2}])
    for word in ("minProperties", "maxProperties"):
        if rng.random() < 0.15:
            schema[word] = rng.randint(0, 3)
    return schema


def _array(rng: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    if rng.random() < 0.7:
        schema["items"] = rng.choice([_schema(rng, depth - 1), _schema(rng, depth - 1), False])
    if rng.random() < 0.3:
        schema["prefixItems"] = [_schema(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    for word, most in (("minItems", 3), ("maxItems", 4)):
        if rng.random() < 0.3:
            schema[word] = rng.randint(0, most)
    if rng.random() < 0.05:
        schema["unevaluatedItems"] = rng.choice([False, _schema(rng, depth - 1)])
    if rng.random() < 0.05:
        schema["uniqueItems"] = rng.choice([False, True])
    return schema


def _branches(rng: Random, depth: int) -> dict[str, Any]:
    word = rng.choice(["anyOf", "anyOf", "oneOf", "allOf"])
    count = 1 if word == "allOf" and rng.random() < 0.8 else rng.randint(1, 3)
    schema: dict[str, Any] = {word: [_schema(rng, depth - 1) for _ in range(count)]}
    if rng.random() < 0.2:
        schema["type"] = rng.choice(["object", "integer", "string", ["integer", "number"]])
    return schema


def _reference(rng: Random, depth: int) -> dict[str, Any]:
    return {"$ref": rng.choice(["#/$defs/p", "#/$defs/q"])}
