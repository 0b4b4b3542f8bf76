"""Durable programs drawn from a seed, killed anywhere, and an oracle that knows what each of them may do. Written from the docs alone.

    python -m tests.programs --programs 100 --seed 1

world     what the programs meet: a bank that writes down each effect, a person who tells the truth, a model with a script
elements  the parts of a program, as a user types them, and what each may do outside
program   a program: its parts and edits, drawn from a seed and rendered as source; when it is killed
starts    one start of a program in a forked process, with its kill; the person at the store
play      a program from its first start to its end, and what was wrong
shrink    the smallest program that is still wrong in the same way
"""
