"""The screen of `adlro top`, with Textual; nothing outside this package imports it but to draw."""
