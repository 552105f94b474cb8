"""Conversations: one (`conversation`), and many at once (`rollout`). Turn order, seeds, concurrency, retries."""
