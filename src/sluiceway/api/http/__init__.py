"""HTTP/1.1 on sockets: heads, bodies, framing, and which requests come in."""
