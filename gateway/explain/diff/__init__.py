"""Finds the first difference between two prompts and its cause.

In: the ``PromptText`` of an earlier and a later request. Out: a ``Difference`` with path, line, masked text and reason,
or None. Start with ``compare``; ``sequence`` and ``message`` compare messages, ``cause`` classifies differing texts.

A dynamic reason needs two values of the same shape in the same slot. Codes of ``Difference.detail``, by reason:

* ``arguments_changed``: ``arguments``.
* ``tools_changed``: ``added``, ``removed``, ``changed``. ``tools_reordered``: ``tool_order``, ``key_order``.
* ``role_order``: ``message_order``, ``system_order`` (only system messages changed places). ``documents_reordered``:
  ``blocks`` (of one text), ``messages`` (examples, or a document each).
* ``system_changed``: ``message_added``, ``message_removed``, ``client_format`` (another client family with entirely
  different leading messages), ``role``, ``content_form``, ``attachments``, ``edited``.
* ``language_changed``: ``instructions``.
* ``history_trimmed``: ``trimmed``, ``summarized`` (a summary replaces the cut messages).
* ``history_edited``: ``message_added``, ``message_removed``, ``role``, ``content_form``, ``json_key_order``,
  ``attachments``, ``tool_calls``, ``name``, ``tool_call_id``, ``edited``.
* ``context_lost``: ``forgotten`` (the gateway no longer held the context blocks that rules had moved behind earlier
  turns).
* ``reply_rerendered``: ``reasoning_dropped``, ``tool_calls_dropped``, ``tool_calls_redumped`` (the same arguments
  written differently), ``parsed`` (the engine parsed the answer, so it cannot come back as generated), ``role``,
  ``stripped``, ``whitespace``, ``unicode_form``, ``truncated``, ``edited``.
* ``whitespace``: ``blanks``, ``line_ends``, ``trailing``, ``zero_width``, ``json_spacing``, ``quotes`` (and dashes
  without blanks), ``dashes`` (between blanks, and hyphens), ``bullets`` and ``json_key_order`` (of instructions),
  ``unicode_form``.
* ``dynamic_time``: ``iso_datetime``, ``datetime``, ``date``, ``time``, ``weekday``, ``month``, ``year``, ``week``,
  ``quarter``, ``epoch``, ``relative``, ``duration``.
* ``dynamic_id``: ``uuid``, ``traceparent``, ``jwt``, ``ip``, ``port``, ``version``, ``object_id``, ``hex``, ``ulid``,
  ``ksuid``, ``snowflake``, ``prefixed``, ``random`` (in brackets from six characters on), ``base64``, ``labelled`` (the
  key in front of it names an id), ``counter`` (two integers).
* ``user_data``: ``email``, ``phone``, ``timezone``, ``locale``, ``number`` (no integer: a price, a share), ``name``,
  ``value`` (any other short value in the slot of a template), ``documents``, ``words`` (a user's own message),
  ``question_first`` (a question in front of documents that were sent before),
  ``conversation`` (the rest of another conversation).
* ``unclassified``: ``edited``: a message with a role that the API does not define.
"""

from gateway.explain.diff.compare import find_difference

__all__ = ["find_difference"]
