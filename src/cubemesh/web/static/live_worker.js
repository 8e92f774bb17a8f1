// One connection a job for all tabs of a browser, which allows six a server. A tab that comes later
// gets the events after its cursor from those that are here, or the connection begins again earlier.
"use strict";

const MOST = 5000;
const watched = new Map(); // address → { source, ports, events, floor }

function open(address, cursor, ports) {
  const job = { source: new EventSource(`${address}?after=${cursor}`), ports, events: [], floor: cursor };
  job.source.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    job.events.push(event);
    if (job.events.length > MOST) job.floor = job.events.shift().sequence;
    for (const port of job.ports) port.postMessage(event);
  };
  job.source.addEventListener("end", () => job.source.close());
  watched.set(address, job);
}

function leave(address, port) {
  const job = watched.get(address);
  if (!job) return;
  job.ports.delete(port);
  if (job.ports.size === 0) {
    job.source.close();
    watched.delete(address);
  }
}

self.onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data.leave) {
      leave(data.leave, port);
      return;
    }
    const job = watched.get(data.address);
    if (job && job.source.readyState !== EventSource.CLOSED && data.cursor >= job.floor) {
      job.ports.add(port);
      for (const event of job.events) if (event.sequence > data.cursor) port.postMessage(event);
      return;
    }
    if (job) job.source.close();
    open(data.address, data.cursor, new Set([...(job ? job.ports : []), port]));
  };
};
