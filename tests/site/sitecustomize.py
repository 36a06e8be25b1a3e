"""Loaded by Python as it starts a program of a test, since PYTHONPATH names this folder: the program is watched as tests are."""

import os

import forbidden

if forbidden.SEEN_FILE in os.environ:
    forbidden.watch(forbidden.note_in_file)
