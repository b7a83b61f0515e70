"""The lab: questions about the product, answered by measurement. It imports the product, never the reverse."""
