"""Replay of a day on a lab's GPU server, with the rules of autogpu and of the tools that people use instead."""
