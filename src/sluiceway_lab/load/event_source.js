// Runs in a page of the server's origin. It requests a stream, cancels reading it, and follows the stream with the browser's
// own EventSource, which reconnects when it is cut off. It ends when the server says so (204), or with `stopsItself` at [DONE].
// The value: id and data of every event, milliseconds from each loss of the connection to the next event, and whether the
// server ended it.
(async ({ path, body, streamId, stopsItself }) => {
  const asked = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!asked.ok) throw new Error(`${asked.status}: ${await asked.text()}`);
  await asked.body.cancel();
  return await new Promise((resolve) => {
    const source = new EventSource(`/v1/streams/${streamId}`);
    const found = { events: [], waits: [], stopped: false };
    let lostAt = null;
    source.onmessage = ({ lastEventId, data }) => {
      if (lostAt !== null) found.waits.push(performance.now() - lostAt);
      lostAt = null;
      found.events.push([lastEventId, data]);
      if (stopsItself && data === "[DONE]") {
        source.close();
        resolve(found);
      }
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) resolve({ ...found, stopped: true });
      lostAt = performance.now();
    };
  });
})
