"""The lab: measures Sluiceway, and other servers, from outside. A package of its own; the product never imports it."""
