"""The canonicalization rules, one file each. Pure: their edits depend only on the prompt and the ``RuleContext``."""
