"""The demonstration: page views counted per app, killed again and again, in three delivery modes side by side."""
