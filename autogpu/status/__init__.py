"""Status of a host at one moment: its GPUs, jobs and queue, and a preview for a job started here."""
