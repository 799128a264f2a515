"""Variables of records: the discrete ones with their vocabularies, and jobs as rows of numbers."""
