"""Providers of text models behind one protocol: `scripted`, `tiny` and `openai`."""
