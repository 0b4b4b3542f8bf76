"""The bridge over HTTP: its routes with their bodies, streams of events, hooks, files and the page.

`routes` is the table; `port` and `listener` hold the sockets, for WebSockets too.
"""
