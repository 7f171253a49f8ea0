"""The choice of schedules by timing candidates on the device."""
