"""One operation: the attempts, waits and decisions between a call and its answer.

`operation` is the state, `drivers` make the calls and wait, `plan` is what was looked up once, `facts` what a decision is made from,
`reports` its events.
"""
