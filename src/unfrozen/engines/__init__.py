"""Models that can sample and train. An engine knows tokens and adapters, never roles, rewards or environments."""
