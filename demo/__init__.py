"""What autogpu changes, shown: the same script twice at once, without and with autogpu."""
