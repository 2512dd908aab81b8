"""The training text of the small model: fetched, cleaned, split, tokenised and packed, one command per stage."""
