"""What is wanted against what was just read, in words: for `diff` and `explain`. Pure."""
