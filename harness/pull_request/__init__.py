"""The pull request of a series: what is missing for it, its page, and its branch."""
