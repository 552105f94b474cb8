"""The report of a run: one HTML file, the terminal summary and the picture of the collapse.

This room draws a `summary` (see docs/summary.md) and computes no statistics: every number on the page was
averaged by whoever made the summary. A part that is missing is left out, never drawn as zero.
"""

from unfrozen.report.diagnosis import write_diagnosis
from unfrozen.report.diagnosis_terminal import print_diagnosis
from unfrozen.report.html import write_report
from unfrozen.report.picture import collapse_picture
from unfrozen.report.terminal import print_summary

__all__ = ["collapse_picture", "print_diagnosis", "print_summary", "write_diagnosis", "write_report"]
