"""MCP, both ways: sessions with servers that recover, their tools in a `Toolbox`, and a `Toolbox` served to other clients.

session     calls that recover, on connections that are made again
connection  one connection and the task that holds it
stdio       servers in processes of their own, none of which is left behind
servers     several servers under their names
server      our tools for other clients
"""
