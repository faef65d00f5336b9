"""Where Cockpit 1.0 kept `configuration` and the schedules: the same names, from their own modules."""
