"""The Meter as the frameworks' own callbacks; each module needs its framework."""
