"""A run in the terminal: a table that follows the training, for those who look on over ssh."""

from cockpit.terminal.comparison import comparison_page
from cockpit.terminal.sparkline import sparkline
from cockpit.terminal.watch import watch

__all__ = ["comparison_page", "sparkline", "watch"]
