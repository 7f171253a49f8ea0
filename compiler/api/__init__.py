"""What the public functions share: checks of their keywords, their receiver of notes and progress, and rarer garbage
collection while they run."""
