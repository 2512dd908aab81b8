"""The words of JSON Schema, by what becomes of them here."""

from __future__ import annotations

TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")

CHOOSERS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""The first of these that a schema has decides alone; whatever constrains beside it is ignored."""

OF_STRINGS = frozenset({"pattern", "format", "minLength", "maxLength"})
OF_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
OF_ARRAYS = frozenset(
    {"items", "prefixItems", "unevaluatedItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}
    | {"contains", "minContains", "maxContains"}
)
OF_OBJECTS = frozenset(
    {"properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"}
    | {"minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"}
)
CONSTRAINTS = frozenset({"type", *CHOOSERS}) | OF_STRINGS | OF_NUMBERS | OF_ARRAYS | OF_OBJECTS

IMPLY_OBJECT = ("properties", "additionalProperties", "unevaluatedProperties")
IMPLY_ARRAY = ("items", "prefixItems", "unevaluatedItems")
"""A schema without a type that has one of these is taken for one of objects, else of arrays."""

NEVER = {
    "not": "name what is wanted instead",
    "if": "use anyOf with one branch for each case",
    "then": "use anyOf with one branch for each case",
    "else": "use anyOf with one branch for each case",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
"""Keyword, wherever it stands -> what to do instead, because it would be ignored."""

NEVER_OF_OBJECTS = {
    "dependentRequired": "use anyOf with one branch for each case",
    "dependentSchemas": "use anyOf with one branch for each case",
    "dependencies": "use anyOf with one branch for each case",
}
NEVER_OF_ARRAYS = {
    "contains": "describe the place of the item with prefixItems",
    "minContains": "use minItems",
    "maxContains": "use maxItems",
    "additionalItems": "use prefixItems with items",
}

ANNOTATIONS = frozenset(
    {"title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
    | {"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$defs", "definitions"}
    | {"contentEncoding", "contentMediaType", "contentSchema", "discriminator", "xml", "externalDocs"}
)
"""They never constrain."""

FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
    | {"uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"}
)
"""Those that are enforced."""
