"""The process of the agents, which goes on when the server of the bridge is stopped, killed or upgraded.

`link` is the server's side, `agent_host` the process's; they share the store and say the rest over `channel`.
"""
