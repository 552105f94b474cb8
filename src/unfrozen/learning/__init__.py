"""From episodes to updates: advantages, simulator rewards, datums, and the update of one adapter.

The learner never samples text and knows no environment's rules: it sees outcomes and token traces.
"""
