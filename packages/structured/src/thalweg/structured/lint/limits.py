"""How large a specification may be before it is worth asking whether it can be compiled."""

from __future__ import annotations

MAX_DEPTH = 64
"""Schemas inside of schemas, groups inside of groups, formats inside of formats."""
MAX_JSON_DEPTH = 256
"""Arrays and objects inside of each other in the JSON of a source: a level of a schema may take several."""
MAX_REPETITION = 10_000
"""Of a pattern or a grammar: the product of nested upper bounds, each of which may multiply the work."""
MAX_COUNT = 1_000_000
"""Largest maxLength, minItems, and so on, of a schema: these cost the same whatever they are, alone and nested."""
MAX_CHOICES = 10_000
"""Values of an enum, and texts to choose from."""
MAX_SCHEMAS = 5_000
"""Of one schema, itself included, each counted once."""
MAX_PIECES = 10_000
"""Characters in a row, classes, groups and so on of all regular expressions of a specification."""
MAX_MULTIPLE_OF = 1024
"""Largest `multipleOf` that is enforced."""
MAX_MULTIPLES_RANGE = 9999
"""Largest maximum - minimum with which `multipleOf` is enforced."""
MAX_DECIMALS = 6
"""That numbers with bounds have."""
MAX_WARNINGS = 20
"""Of one specification; the rest is counted."""
