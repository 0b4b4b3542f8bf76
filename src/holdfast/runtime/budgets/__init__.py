"""Budgets: the ledger of `budget`, what is reserved before a call is sent, and what is charged when it ends."""
