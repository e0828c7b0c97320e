// Node's client as it is by default, then with the offer that proxies pass on.
import { readFileSync } from "node:fs";
import http from "node:http";

const [url, ...paths] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

function post(body, headers) {
  return new Promise((resolve, reject) => {
    const request = http.request(url, { method: "POST", agent, headers }, (answer) => {
      const parts = [];
      answer.on("data", (part) => parts.push(part));
      answer.on("end", () => resolve(`${answer.statusCode} ${Buffer.concat(parts)}`));
    });
    request.on("error", reject);
    request.end(body);
  });
}

for (const path of paths) {
  const body = readFileSync(path);
  const answer = await fetch(url, { method: "POST", body });
  console.log(`${answer.status} ${await answer.text()}`);
  console.log(await post(body, {}));
  console.log(await post(body, { Connection: "Upgrade, HTTP2-Settings", Upgrade: "h2c" }));
}
agent.destroy();
