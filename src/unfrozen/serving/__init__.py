"""An OpenAI-compatible server in front of simulators: requests, replies, the log of turns, the application.

Which simulators it serves is decided above, in `jobs/serve`; which conversation a request belongs to, below,
in `simulators/sessions`.
"""
