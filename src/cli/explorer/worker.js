// The program in a worker: WebAssembly, with the part of WASI (preview 1) that it needs. Files are in memory, there is no network.
// Messages in: {module} once, then {id, args, files}; out: {id, code, out, err, files} with the files that the program wrote.

const SUCCESS = 0, BADF = 8, EXIST = 20, INVAL = 28, ISDIR = 31, NOENT = 44, NOSYS = 52, NOTDIR = 54, NOTEMPTY = 55;
const REGULAR = 4, FOLDER = 3, ROOT = 3;
const decoder = new TextDecoder(), encoder = new TextEncoder();

class Ended extends Error {
  constructor(code) { super("the program ended"); this.code = code; }
}

// A file's bytes, which grow by doubling.
class Content {
  constructor(bytes = new Uint8Array(0)) { this.bytes = bytes; this.size = bytes.length; this.changed = false; }
  write(at, piece) {
    const end = at + piece.length;
    if (end > this.bytes.length) {
      const more = new Uint8Array(Math.max(end, 2 * this.bytes.length, 4096));
      more.set(this.bytes.subarray(0, this.size));
      this.bytes = more;
    }
    this.bytes.set(piece, at);
    this.changed = true;
    this.size = Math.max(this.size, end);
  }
  read(at, length) { return this.bytes.subarray(at, Math.min(this.size, at + length)); }
  whole() { return this.bytes.slice(0, this.size); }
}

// One run of the program: its memory, its files by path, and what it has opened.
class Run {
  constructor(args, files, columns) {
    this.args = ["pipesim", ...args].map(text => encoder.encode(text + "\0"));
    this.environment = ["RUST_BACKTRACE=1", "NO_COLOR=1", "COLUMNS=" + columns].map(text => encoder.encode(text + "\0"));
    this.files = new Map();
    this.folders = new Set([""]);
    for (const [name, bytes] of Object.entries(files)) this.files.set(name, new Content(typeof bytes === "string" ? encoder.encode(bytes) : bytes));
    this.out = new Content();
    this.err = new Content();
    this.open = new Map([[0, { content: new Content(), at: 0 }], [1, { content: this.out, at: 0 }], [2, { content: this.err, at: 0 }], [ROOT, { folder: "" }]]);
    this.next = ROOT + 1;
  }
  get view() { return new DataView(this.memory.buffer); }
  bytes(at, length) { return new Uint8Array(this.memory.buffer, at, length); }
  path(fd, at, length) {
    const base = this.open.get(fd), parts = [];
    if (!base || base.folder === undefined) return null;
    for (const part of (base.folder + "/" + decoder.decode(this.bytes(at, length).slice())).split("/")) {
      if (part === "..") parts.pop(); else if (part && part !== ".") parts.push(part);
    }
    return parts.join("/");
  }
  list(texts, pointers, buffer) {
    for (const text of texts) {
      this.view.setUint32(pointers, buffer, true);
      this.bytes(buffer, text.length).set(text);
      pointers += 4;
      buffer += text.length;
    }
    return SUCCESS;
  }
  sizes(texts, count, size) {
    this.view.setUint32(count, texts.length, true);
    this.view.setUint32(size, texts.reduce((sum, text) => sum + text.length, 0), true);
    return SUCCESS;
  }
  status(at, kind, size) {
    this.bytes(at, 64).fill(0);
    this.view.setUint8(at + 16, kind);
    this.view.setBigUint64(at + 24, 1n, true);
    this.view.setBigUint64(at + 32, BigInt(size), true);
    return SUCCESS;
  }
  // Calls `each` with the pieces of memory that a vector of them names; `each` returns how many bytes it took.
  vector(at, count, total, each) {
    let sum = 0;
    for (let k = 0; k < count; k++, at += 8) {
      const length = this.view.getUint32(at + 4, true), done = each(this.bytes(this.view.getUint32(at, true), length));
      sum += done;
      if (done < length) break;
    }
    this.view.setUint32(total, sum, true);
    return SUCCESS;
  }
  imports() {
    const of = fd => this.open.get(fd), opened = (fd, act) => { const file = of(fd); return !file ? BADF : file.folder !== undefined ? ISDIR : act(file); };
    const reads = (file, from, piece) => { const found = file.content.read(from, piece.length); piece.set(found); return found.length; };
    const calls = {
      args_get: (pointers, buffer) => this.list(this.args, pointers, buffer),
      args_sizes_get: (count, size) => this.sizes(this.args, count, size),
      environ_get: (pointers, buffer) => this.list(this.environment, pointers, buffer),
      environ_sizes_get: (count, size) => this.sizes(this.environment, count, size),
      clock_res_get: (_, at) => { this.view.setBigUint64(at, 1000n, true); return SUCCESS; },
      clock_time_get: (clock, _, at) => { this.view.setBigUint64(at, BigInt(Math.round((clock === 0 ? Date.now() : performance.now()) * 1e6)), true); return SUCCESS; },
      random_get: (at, length) => { for (let from = 0; from < length; from += 65536) crypto.getRandomValues(this.bytes(at + from, Math.min(65536, length - from))); return SUCCESS; },
      sched_yield: () => SUCCESS,
      proc_exit: code => { throw new Ended(code); },
      fd_close: fd => (this.open.delete(fd) ? SUCCESS : BADF),
      fd_sync: () => SUCCESS,
      fd_datasync: () => SUCCESS,
      fd_fdstat_get: (fd, at) => {
        const file = of(fd);
        if (!file) return BADF;
        this.bytes(at, 24).fill(0);
        this.view.setUint8(at, file.folder === undefined ? REGULAR : FOLDER);
        this.view.setBigUint64(at + 8, 0xffffffffn, true);
        this.view.setBigUint64(at + 16, 0xffffffffn, true);
        return SUCCESS;
      },
      fd_fdstat_set_flags: () => SUCCESS,
      fd_filestat_get: (fd, at) => { const file = of(fd); return !file ? BADF : file.folder !== undefined ? this.status(at, FOLDER, 0) : this.status(at, REGULAR, file.content.size); },
      fd_filestat_set_size: (fd, size) => opened(fd, file => { const most = Number(size); if (most > file.content.size) file.content.write(most - 1, new Uint8Array(1)); file.content.size = most; return SUCCESS; }),
      fd_prestat_get: (fd, at) => { if (fd !== ROOT) return BADF; this.view.setUint32(at, 0, true); this.view.setUint32(at + 4, 1, true); return SUCCESS; },
      fd_prestat_dir_name: (fd, at) => { if (fd !== ROOT) return BADF; this.bytes(at, 1)[0] = 47; return SUCCESS; },
      fd_read: (fd, at, count, total) => opened(fd, file => this.vector(at, count, total, piece => { const n = reads(file, file.at, piece); file.at += n; return n; })),
      fd_pread: (fd, at, count, offset, total) => opened(fd, file => { let from = Number(offset); return this.vector(at, count, total, piece => { const n = reads(file, from, piece); from += n; return n; }); }),
      fd_write: (fd, at, count, total) => opened(fd, file => this.vector(at, count, total, piece => { if (file.append) file.at = file.content.size; file.content.write(file.at, piece); file.at += piece.length; return piece.length; })),
      fd_seek: (fd, offset, whence, at) => opened(fd, file => {
        const to = Number(offset) + (whence === 0 ? 0 : whence === 1 ? file.at : file.content.size);
        if (to < 0) return INVAL;
        file.at = to;
        this.view.setBigUint64(at, BigInt(to), true);
        return SUCCESS;
      }),
      fd_tell: (fd, at) => opened(fd, file => { this.view.setBigUint64(at, BigInt(file.at), true); return SUCCESS; }),
      fd_readdir: (fd, at, length, cookie, used) => {
        const base = of(fd);
        if (!base || base.folder === undefined) return BADF;
        const inside = base.folder ? base.folder + "/" : "", names = new Map();
        for (const path of this.files.keys()) if (path.startsWith(inside) && !path.slice(inside.length).includes("/")) names.set(path.slice(inside.length), REGULAR);
        for (const path of this.folders) if (path && path.startsWith(inside) && path !== base.folder && !path.slice(inside.length).includes("/")) names.set(path.slice(inside.length), FOLDER);
        let sum = 0;
        [...names].forEach(([name, kind], k) => {
          if (k < Number(cookie) || sum >= length) return;
          const text = encoder.encode(name), entry = new Uint8Array(24 + text.length), view = new DataView(entry.buffer);
          view.setBigUint64(0, BigInt(k + 1), true);
          view.setUint32(16, text.length, true);
          view.setUint8(20, kind);
          entry.set(text, 24);
          const piece = entry.subarray(0, length - sum);
          this.bytes(at + sum, piece.length).set(piece);
          sum += piece.length;
        });
        this.view.setUint32(used, sum, true);
        return SUCCESS;
      },
      path_open: (fd, _, at, length, how, _rights, _more, flags, result) => {
        const path = this.path(fd, at, length), [create, folder, exclusive, truncate] = [1, 2, 4, 8].map(bit => how & bit);
        if (path === null) return BADF;
        let file;
        if (this.folders.has(path)) {
          if (create || truncate) return ISDIR;
          file = { folder: path };
        } else {
          if (folder) return this.files.has(path) ? NOTDIR : NOENT;
          if (this.files.has(path) ? create && exclusive : !create) return this.files.has(path) ? EXIST : NOENT;
          if (!this.folders.has(path.split("/").slice(0, -1).join("/"))) return NOENT;
          if (!this.files.has(path) || truncate) this.files.set(path, new Content());
          file = { content: this.files.get(path), at: 0, append: flags & 1 };
        }
        this.open.set(this.next, file);
        this.view.setUint32(result, this.next++, true);
        return SUCCESS;
      },
      path_filestat_get: (fd, _, at, length, result) => {
        const path = this.path(fd, at, length);
        if (this.folders.has(path)) return this.status(result, FOLDER, 0);
        return this.files.has(path) ? this.status(result, REGULAR, this.files.get(path).size) : NOENT;
      },
      path_create_directory: (fd, at, length) => {
        const path = this.path(fd, at, length);
        if (this.folders.has(path) || this.files.has(path)) return EXIST;
        this.folders.add(path);
        return SUCCESS;
      },
      path_remove_directory: (fd, at, length) => {
        const path = this.path(fd, at, length), inside = [...this.files.keys(), ...this.folders].some(other => other.startsWith(path + "/"));
        return inside ? NOTEMPTY : this.folders.delete(path) ? SUCCESS : NOENT;
      },
      path_unlink_file: (fd, at, length) => (this.files.delete(this.path(fd, at, length)) ? SUCCESS : NOENT),
      path_rename: (fd, at, length, to, toAt, toLength) => {
        const from = this.path(fd, at, length), target = this.path(to, toAt, toLength);
        if (!this.files.has(from) && !this.folders.has(from)) return NOENT;
        for (const [path, content] of [...this.files]) if (path === from || path.startsWith(from + "/")) { this.files.delete(path); this.files.set(target + path.slice(from.length), content); }
        for (const path of [...this.folders]) if (path === from || path.startsWith(from + "/")) { this.folders.delete(path); this.folders.add(target + path.slice(from.length)); }
        return SUCCESS;
      },
    };
    return { wasi_snapshot_preview1: new Proxy(calls, { get: (known, name) => known[name] || (() => NOSYS) }) };
  }
  async go(module) {
    const instance = await WebAssembly.instantiate(module, this.imports());
    this.memory = instance.exports.memory;
    let code = 0;
    try {
      instance.exports._start();
    } catch (error) {
      if (error instanceof Ended) code = error.code;
      else {
        code = 1;
        const deep = error instanceof RangeError;
        this.err.write(this.err.size, encoder.encode(deep ? "error: the schedule nests too deeply for this browser; expected fewer calls inside calls: use a loop, or run it with the pipesim program\n" : "error: the program stopped (" + error.message + "); ask for fewer devices or micro-batches, or use the pipesim program\n"));
      }
    }
    const written = {};
    for (const [path, content] of this.files) if (content.changed) written[path] = content.whole();
    return { code, out: decoder.decode(this.out.whole()), err: decoder.decode(this.err.whole()), files: written, bytes: this.memory.buffer.byteLength };
  }
}

let program = null;
self.onmessage = async ({ data }) => {
  if (data.module) { program = data.module; return; }
  try {
    const result = await new Run(data.args, data.files, data.columns).go(program);
    self.postMessage({ id: data.id, ...result }, Object.values(result.files).map(bytes => bytes.buffer));
  } catch (error) {
    self.postMessage({ id: data.id, code: 1, out: "", err: "error: " + error.message, files: {} });
  }
};
