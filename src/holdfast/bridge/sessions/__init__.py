"""A session that somebody is connected to: what its clients see of its log, and the agent that answers its messages.

`live_session` joins them; `agent_runner` runs turns, `publisher` stores what an agent says, `frames` is the log as clients get it.
"""
