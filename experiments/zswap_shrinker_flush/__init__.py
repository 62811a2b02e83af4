"""The experiment of the page beside this file: what was fitted, what was run."""
