"""Reports: the evidence file, and what people read in a terminal or in Markdown."""
