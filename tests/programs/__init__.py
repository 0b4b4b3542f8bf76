"""Durable programs drawn from a seed, killed anywhere, and an oracle that knows what each of them may do. Written from the docs alone.

    python -m tests.programs --programs 100 --seed 1

world     what the programs meet: a bank that writes down each effect, a person who tells the truth, a model with a script
part      what a part of a program is: as a user types it, and what it may do outside
elements  the parts: steps, turns, questions; elements_tasks: agents, workflows, stages, tasks; elements_ways: what could be done in the
          place of an unsafe call; functions: what they call
program   a program: its parts and edits, drawn from a seed and rendered as source; when it is killed
starts    one start of a program in a forked process, with its kill; the person at the store
play      a program from its first start to its end, and what was wrong
put_back  bugs that Holdfast once had; hunt: how soon a program finds one of them
peers     the same programs on DBOS (as_dbos) and LangGraph (as_langgraph)
shrink    the smallest program that is still wrong in the same way
"""
