"""Assembly of a broker from parts; each part builds, schedules and stops its own objects."""
