"""Variables of records: discrete variables with their vocabularies, and jobs as rows of numbers."""
