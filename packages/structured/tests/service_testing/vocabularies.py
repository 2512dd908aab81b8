"""A vocabulary that is small enough for tests of the service, where compiling has to be quick."""

from thalweg.structured.vocabulary import Vocabulary

END = 0
NUM_TOKENS = 1256


def small_vocabulary(prefix: str = "w") -> Vocabulary:
    """An end token, every byte, words, and the added token <go>."""
    words = [f"{prefix}{number}".encode() for number in range(NUM_TOKENS - 256)]
    tokens = (b"", *(bytes([byte]) for byte in range(256)), *words)[: NUM_TOKENS - 1]
    return Vocabulary((*tokens, b"<go>"), 1280, END, frozenset({NUM_TOKENS - 1}))


def token_of(character: str) -> int:
    """The id of the token that is this one ASCII character."""
    return ord(character) + 1
