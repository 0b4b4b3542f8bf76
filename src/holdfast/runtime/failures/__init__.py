"""What a failure shows: the request or statement behind it, whether it happened, and what an audit keeps of it."""
