"""Text environments that ship: code validation in the small."""
