"""What answers when a call has failed for good: another function, the cache, a degraded answer."""
