// The JavaScript client under faults: node soak.mjs URL SESSION. It reads and sends until a line comes on stdin, prints one when everything
// that it sent is stored, reads up to the offset of the second line, and prints what it has read and where its messages are stored.

import { createInterface } from "node:readline";
import { Client } from "../../../src/holdfast/bridge/page/holdfast.js";

const [url, name] = process.argv.slice(2);
const schedule = { delays: [0.01, 0.02, 0.05, 0.1], jitter: 0.2, attempts: null, grace: null };
const client = new Client(url, { token: "token", schedule, connectTimeout: 1, answerTimeout: 0.8, maxWaiting: 50 });
const session = client.join(name, { create: true });
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

const read = [];
const stored = {};
let gaps = 0;

const reading = (async () => {
  for await (const message of session) {
    if (message.type === "gap") gaps += 1;
    if (message.offset) read.push([message.offset, message.payload]);
  }
})();
reading.catch((error) => { throw error; });

let isOver = false;
const sends = new Set();
const writing = (async () => {
  for (let number = 0; !isOver; number += 1) {
    const text = `m${number}`;
    const sent = session.send(text).then((offset) => { stored[text] = offset; sends.delete(sent); });
    sends.add(sent);
    if (sends.size >= 8) await Promise.race(sends);
    await pause(0.01);
  }
  await Promise.all(sends);
})();

await session.send("m-first").then((offset) => { stored["m-first"] = offset; });
console.log("ready");
await lines.next();
isOver = true;
client.wake();
await writing;
console.log("stored");
const top = Number((await lines.next()).value);
while ((read.at(-1)?.[0] ?? 0) < top) await pause(0.01);
// The process must not end before the pipe has taken everything.
process.stdout.write(`${JSON.stringify({ read, stored, gaps })}\n`, () => process.exit(0));
