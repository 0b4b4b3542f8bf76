"""The verbs that run workers and look after what was submitted to them."""
