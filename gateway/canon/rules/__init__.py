"""The rules, one file each. Pure: what they do follows from the prompt and from what is given to them."""
