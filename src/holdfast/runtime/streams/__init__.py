"""Streams that recover: `flow` decides and does no I/O, `stream` performs it, `dialects` knows the items of libraries."""
