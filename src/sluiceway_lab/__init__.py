"""The lab measures Sluiceway and other servers from outside. It is a separate package; the product never imports it."""
