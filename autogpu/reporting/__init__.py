"""The sentences that autogpu prints, and how they reach a terminal."""
