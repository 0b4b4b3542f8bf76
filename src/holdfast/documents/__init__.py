"""The documents that Holdfast implements, one module for each: what a user of a document imports, under the names it has there.

bridge    000, errors and recovery of a bridge between clients and agents
spec016   001, error recovery and resilience
stud      002, the error model of an agent
task      003, the error pattern of a task system
actor     004, the error model of actors

These modules hold no code; the rooms keep it. `Runtime(profile="spec016")`, or `profile = "spec016"` in `holdfast.toml`, makes
a whole program behave as that document says.
"""
