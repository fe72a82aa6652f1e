"""The dashboard in a real browser.

A package, so that its fixtures end with it: the browser's own event loop must be gone when other tests run theirs.
"""
