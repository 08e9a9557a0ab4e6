"""``make lab``: a shell on a simulated GPU server on which other people's jobs come and go."""
