"""The verbs that read a journal of runs."""
