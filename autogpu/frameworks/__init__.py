"""Frameworks: one file for each, and nothing outside this folder names one."""
