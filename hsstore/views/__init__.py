"""The forms that a sample can take for training: functions from an item to what a trainer eats."""
