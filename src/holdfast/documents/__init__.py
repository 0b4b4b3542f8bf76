"""The documents that Holdfast implements, one module for each: what a user of a document imports, in Python's spelling.

bridge    000, errors and recovery of a bridge between clients and agents
spec016   001, error recovery and resilience
stud      002, the error model of an agent
task      003, the error pattern of a task system
actor     004, the error model of actors

A name of a document is importable under that name where Holdfast has the same thing to import. Where it is a method, an option or a
setting here, or a part of a sample that a program writes itself, the docstring of the module or the document's page says what stands for
it. These modules hold no code; the rooms keep it. `Runtime(profile="spec016")`, or `profile = "spec016"` in `holdfast.toml`, makes a whole
program behave as that document says.
"""
