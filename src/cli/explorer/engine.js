// The engine: runs command lines of pipesim, here as WebAssembly, or by the program that serves this page.
// run(channel, args, files) resolves to {code, out, err, files}, or to null if a later run of the same channel took its place.

const LONG_MS = 400; // a run that a newer one replaces is stopped after this time
let columns = 110;

class Channel {
  constructor(begin) { this.begin = begin; this.running = null; this.waiting = null; }
  run(request) {
    return new Promise(resolve => {
      if (this.waiting) this.waiting.resolve(null);
      this.waiting = { request, resolve };
      if (!this.running) this.go();
      else if (!this.running.late) {
        const rest = Math.max(0, LONG_MS - (performance.now() - this.running.begun));
        this.running.late = setTimeout(() => this.stop(), rest);
      }
    });
  }
  go() {
    const { request, resolve } = this.waiting;
    this.waiting = null;
    const running = this.running = { resolve, begun: performance.now(), late: 0 };
    running.stop = this.begin(request, result => {
      if (this.running !== running) return;
      clearTimeout(running.late);
      this.running = null;
      resolve(result && { ...result, ms: performance.now() - running.begun });
      if (this.waiting) this.go();
    });
  }
  stop() {
    const { running } = this;
    if (!running) return;
    clearTimeout(running.late);
    this.running = null;
    running.stop();
    running.resolve(null);
    if (this.waiting) this.go();
  }
}

// WebAssembly: a worker per channel; stopping a run ends its worker.
function wasmEngine(workerText) {
  const url = URL.createObjectURL(new Blob([workerText], { type: "text/javascript" }));
  const compiled = (async () => {
    const packed = Uint8Array.from(atob(document.getElementById("program").textContent.trim()), c => c.charCodeAt(0));
    document.getElementById("program").remove();
    return WebAssembly.compile(await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
  })();
  const workers = new Map();
  let count = 0;
  const start = async name => {
    const worker = new Worker(url);
    worker.postMessage({ module: await compiled });
    return worker;
  };
  return name => ({ args, files }, done) => {
    const id = ++count;
    if (!workers.has(name)) workers.set(name, start(name));
    const mine = workers.get(name);
    mine.then(worker => {
      worker.onmessage = ({ data }) => { if (data.id === id) done(data); };
      worker.onerror = () => { workers.delete(name); done({ code: 1, out: "", err: "error: the program ran out of this browser's memory; ask for fewer devices or micro-batches", files: {} }); };
      worker.postMessage({ id, args, files, columns });
    }, error => done({ code: 1, out: "", err: "error: this browser cannot start the program: " + error.message, files: {} }));
    return () => { workers.delete(name); mine.then(worker => worker.terminate()); };
  };
}

// The program that serves the page.
function servedEngine(token) {
  return () => ({ args, files }, done) => {
    const stop = new AbortController();
    const texts = Object.fromEntries(Object.entries(files).map(([name, bytes]) => [name, typeof bytes === "string" ? bytes : new TextDecoder().decode(bytes)]));
    fetch("/run", { method: "POST", headers: { "Content-Type": "application/json", "X-Pipesim-Token": token }, body: JSON.stringify({ args, files: texts, columns }), signal: stop.signal })
      .then(async answer => {
        if (!answer.ok) throw new Error(await answer.text());
        const result = await answer.json();
        result.files = Object.fromEntries(Object.entries(result.files).map(([name, base64]) => [name, Uint8Array.from(atob(base64), c => c.charCodeAt(0))]));
        done(result);
      })
      .catch(error => { if (error.name !== "AbortError") done({ code: 1, out: "", err: "error: the program that serves this page did not answer (" + error.message + "); start pipesim explore again", files: {} }); });
    return () => stop.abort();
  };
}

const begin = facts.token ? servedEngine(facts.token) : wasmEngine(document.getElementById("worker").textContent);
const channels = new Map();
function run(channel, args, files = {}) {
  if (!channels.has(channel)) channels.set(channel, new Channel(begin(channel)));
  return channels.get(channel).run({ args, files });
}
function stopAll() { for (const channel of channels.values()) channel.stop(); }
