"""A day on a lab's GPU server, replayed by the rules of autogpu and of what people use instead."""
