// In a page of the server's origin: asks for a stream, lets go of it, and follows it with the browser's own EventSource,
// which comes back by itself when it is cut off. To the end that the server tells it (204), or with `stopsItself` to [DONE].
// The value: every event's id and data, milliseconds from each loss of the connection to the next event, and whether it
// was told to stop.
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
