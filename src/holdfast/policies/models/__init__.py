"""What is known about models and their responses: `usage` (tokens), `prices`, `capabilities` and `tool_calls`.

Each module is imported by itself. A runtime that only counts tokens does not load the table of prices.
"""
