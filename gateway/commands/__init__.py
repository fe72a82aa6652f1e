"""The commands of ``prefix-gateway``, one module each.

Arguments come in; output on the terminal and an exit code go out. Start with ``serve``. ``admin_client`` is the HTTP
client of the commands that call a running gateway.
"""
