"""What autogpu tells people: the sentences, and how they reach a terminal."""
