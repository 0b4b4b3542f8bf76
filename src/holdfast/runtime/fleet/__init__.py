"""What this process shares with the others of its fleet: one connection and thread for each runtime, one `TargetShare` for each target.

No call waits for the engine. A call reads what its process knows; the thread brings the news.
"""
