"""What a grammar over text needs to know of a tokenizer."""

from thalweg.structured.vocabulary.vocabulary import Vocabulary

__all__ = ["Vocabulary"]
