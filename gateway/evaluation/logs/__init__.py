"""Recorded requests: finds a log's format, and reads the requests in it.

In: log files, as bytes. Out: ``LoggedRequest``, in the order of their times, and a count of what could not be read.
``log_reading`` is the entry and finds the format; every format has a module that turns one line into a
request.
"""
