"""Who has which GPU at one moment, who waits, and what a job started here would get."""
