"""HTTP/1.1 on sockets: parses heads and bodies, frames answers, and refuses requests that are not allowed."""
