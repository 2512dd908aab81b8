"""A vocabulary that is small enough for tests of the service, where compiling has to be quick."""

from thalweg.structured.vocabulary import Vocabulary

END = 0
NUM_TOKENS = 1256


def small_vocabulary(prefix: str = "w") -> Vocabulary:
    """An end token, every byte, and words."""
    words = [f"{prefix}{number}".encode() for number in range(NUM_TOKENS - 256)]
    return Vocabulary((b"", *(bytes([byte]) for byte in range(256)), *words)[:NUM_TOKENS], 1280, END)


def token_of(character: str) -> int:
    """The id of the token that is this one ASCII character."""
    return ord(character) + 1
