"""What a campaign found: as values (`result`), as a table for the terminal, and as one page for a colleague."""
