//! The server of the explorer: the page, and command lines that run in child processes.
//!
//! It listens on this machine alone. A request must name it as its host, come from its own page and, to run anything, carry a random
//! token. A command line may predict and explain; it runs in a folder of its own, whose files it may name and no others.

use super::{Engine, confined, page};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tiny_http::{Header, Method, Request, Response, Server};

/// Most bytes of a request, and of the files that come back.
const MOST_BYTES: u64 = 64 << 20;
/// Most bytes of a command line: systems take no more in one word.
const MOST_ARGUMENT_BYTES: usize = 100_000;
/// Longest time of a command line.
const LONGEST: Duration = Duration::from_secs(60);
/// Most command lines at once.
const MOST_RUNS: usize = 4;

/// The verbs that run: those that neither train nor measure.
const VERBS: [&str; 9] = ["predict", "plan", "explain", "check", "export", "import", "compare", "schedules", "tour"];

/// A command line, and the files that it may read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandRequest {
    args: Vec<String>,
    files: BTreeMap<String, String>,
    columns: u32,
}

/// The explorer's server, bound to a port of this machine.
pub struct Explorer {
    server: Server,
    host: String,
    token: String,
    /// A code that leads to the page once: other programs may read the command line that opens the browser.
    once: Mutex<Option<String>>,
    page: String,
    command: fn() -> clap::Command,
    runs: AtomicUsize,
}

type Answer = Response<io::Cursor<Vec<u8>>>;

impl Explorer {
    /// Binds `port`, any free one if it is 0. `start` is what the page begins with, `command` the definition of the command line.
    ///
    /// # Errors
    /// The port is taken, or the system gives no random numbers.
    pub fn bind(port: u16, schedules: &Value, start: &Value, command: fn() -> clap::Command) -> io::Result<Explorer> {
        let server = Server::http(("127.0.0.1", port)).map_err(io::Error::other)?;
        let host = server.server_addr().to_string();
        let mut random = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let [token, once] = [&random[..16], &random[16..]]
            .map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        let page = page(&Engine::Served(&token), schedules, start)?;
        Ok(Explorer { server, host, token, once: Mutex::new(Some(once)), page, command, runs: AtomicUsize::new(0) })
    }

    /// The address that opens the page.
    pub fn address(&self) -> String {
        format!("http://{}/?token={}", self.host, self.token)
    }

    /// Returns an address that leads to the page once.
    pub fn address_once(&self) -> String {
        let code = self.once.lock().ok().and_then(|code| code.clone()).unwrap_or_default();
        format!("http://{}/?once={code}", self.host)
    }

    /// Answers requests until the process ends.
    pub fn serve(self) -> io::Result<()> {
        let explorer = Arc::new(self);
        loop {
            let mut request = explorer.server.recv()?;
            let one = explorer.clone();
            let work = move || {
                let answer = one.answer(&mut request);
                // A browser that has gone needs no answer.
                let _ = request.respond(with_headers(answer));
            };
            std::thread::Builder::new().name("request".to_string()).spawn(work)?;
        }
    }

    fn answer(&self, request: &mut Request) -> Answer {
        let header = |name: &'static str| {
            request.headers().iter().find(|header| header.field.equiv(name)).map(|header| header.value.to_string())
        };
        let port = self.host.rsplit(':').next().unwrap_or_default();
        let hosts = [self.host.clone(), format!("localhost:{port}")];
        if !header("Host").is_some_and(|host| hosts.contains(&host)) {
            return refused(403, "expected a request to this machine; open the address that pipesim explore printed");
        }
        if header("Origin").is_some_and(|origin| !hosts.iter().any(|host| origin == format!("http://{host}"))) {
            return refused(403, "expected a request of the explorer's own page");
        }
        let (path, query) = request.url().split_once('?').unwrap_or((request.url(), ""));
        match (request.method(), path) {
            (Method::Get, "/") if query == format!("token={}", self.token) => Response::from_string(&self.page),
            (Method::Get, "/") if self.takes_code(query) => {
                let address = format!("/?token={}", self.token);
                let to = Header::from_bytes("Location", address).ok();
                to.into_iter().fold(refused(303, "the explorer"), Response::with_header)
            }
            (Method::Get, "/") => refused(403, "open the address that pipesim explore printed: it ends in a token"),
            (Method::Post, "/run") if header("X-Pipesim-Token").as_ref() != Some(&self.token) => {
                refused(403, "expected the token of this server; open the address that pipesim explore printed")
            }
            (Method::Post, "/run") => self.run(request),
            _ => refused(404, "expected / or /run"),
        }
    }

    /// Whether a query has the code that is valid once; it is not afterwards.
    fn takes_code(&self, query: &str) -> bool {
        let Ok(mut code) = self.once.lock() else { return false };
        code.take_if(|code| query == format!("once={code}")).is_some()
    }

    fn run(&self, request: &mut Request) -> Answer {
        let mut text = String::new();
        let read = request.as_reader().take(MOST_BYTES + 1).read_to_string(&mut text);
        if read.is_err() || text.len() as u64 > MOST_BYTES {
            return refused(413, "expected at most 64 MiB of text; drop smaller files");
        }
        let asked: CommandRequest = match serde_json::from_str(&text) {
            Ok(asked) => asked,
            Err(error) => return refused(400, &format!("expected a command line and files as JSON: {error}")),
        };
        if asked.files.contains_key("") {
            return refused(400, "expected a name for each file, found an empty one; name it");
        }
        if asked.args.iter().map(String::len).sum::<usize>() > MOST_ARGUMENT_BYTES {
            return refused(413, "expected a command line of at most 100 kB; write long values to a file");
        }
        if let Some(why) = unfit(&asked, self.command) {
            return Response::from_string(json!({"code": 2, "out": "", "err": why, "files": {}}).to_string());
        }
        if self.runs.fetch_add(1, Ordering::SeqCst) >= MOST_RUNS {
            self.runs.fetch_sub(1, Ordering::SeqCst);
            return refused(503, "too much is running; wait a moment");
        }
        let result = folder().and_then(|folder| result_of(&asked, &folder.0));
        self.runs.fetch_sub(1, Ordering::SeqCst);
        match result {
            Ok(result) => Response::from_string(result.to_string()),
            Err(error) => refused(500, &format!("cannot run the program: {error}")),
        }
    }
}

/// Says why a command line does not run here.
fn unfit(asked: &CommandRequest, command: fn() -> clap::Command) -> Option<String> {
    let verb = asked.args.first().map_or("", String::as_str);
    let is_help = ["--help", "-h", "--version", "-V", ""].contains(&verb);
    if !VERBS.contains(&verb) && !is_help {
        return Some(format!("error: the explorer runs {}; found '{verb}': run it in a terminal", VERBS.join(", ")));
    }
    if asked.args.iter().any(|word| word.contains('\0')) {
        return Some("error: expected text, found a word with a NUL: leave it out".to_string());
    }
    if let Some(path) = confined::outside(command(), &asked.args) {
        return Some(format!(
            "error: expected names of dropped files, found the path '{path}': drop the file on the page"
        ));
    }
    let mut bases = asked.files.iter().filter_map(|(name, text)| Some((name, confined::outside_base(name, text)?)));
    if let Some((name, (key, path))) = bases.next() {
        return Some(format!(
            "error: {name}: expected {key} to be a name or a dropped file, found the path '{path}': drop it on the page"
        ));
    }
    let is_plain = |name: &String| {
        !name.starts_with('.') && name.chars().all(|c| c.is_ascii_alphanumeric() || "._@+-".contains(c))
    };
    let odd = asked.files.keys().find(|name| !is_plain(name) || name.len() > 100);
    odd.map(|name| format!("error: expected plain names of files, found '{name}'; rename it"))
}

/// A folder of one run, removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn folder() -> io::Result<Folder> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("pipesim-explore-{}-{number}", std::process::id()));
    fs::create_dir(&path)?;
    Ok(Folder(path))
}

/// Runs a command line in `folder`.
fn result_of(asked: &CommandRequest, folder: &Path) -> io::Result<Value> {
    for (name, text) in &asked.files {
        fs::write(folder.join(name), text)?;
    }
    let [out, err] = ["out", "err"].map(|name| folder.join(format!(".{name}")));
    let mut command = Command::new(std::env::current_exe()?);
    command.args(&asked.args).current_dir(folder).stdin(Stdio::null());
    command.env("COLUMNS", asked.columns.clamp(40, 400).to_string()).env("NO_COLOR", "1").env("TMPDIR", folder);
    command.stdout(File::create(&out)?).stderr(File::create(&err)?);
    let code = wait(command.spawn()?)?;
    let mut files = serde_json::Map::new();
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let (entry, name) = entry.map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (entry, name)
        })?;
        let is_new = entry.file_type()?.is_file() && !name.starts_with('.') && !asked.files.contains_key(&name);
        let size = if is_new { entry.metadata()?.len() } else { 0 };
        if is_new && bytes + size <= MOST_BYTES {
            bytes += size;
            files.insert(name, STANDARD.encode(fs::read(entry.path())?).into());
        }
    }
    let text = |path: &Path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let late = if code.is_none() { "error: stopped after 60 s; ask for less, or run it in a terminal\n" } else { "" };
    Ok(json!({"code": code.unwrap_or(6), "out": text(&out)?, "err": text(&err)? + late, "files": files}))
}

/// Waits for a child, and kills it after a while; `None` if it was killed.
fn wait(mut child: Child) -> io::Result<Option<i32>> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.code().unwrap_or(1)));
        }
        if begin.elapsed() > LONGEST {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(20));
    }
}

fn refused(status: u16, why: &str) -> Answer {
    Response::from_string(why).with_status_code(status)
}

/// Adds what browsers must know: nothing else may show the page, keep it or learn its address.
fn with_headers(answer: Answer) -> Answer {
    let is_page = answer.status_code().0 == 200 && answer.data_length().is_some();
    let kind = if is_page { "text/html; charset=utf-8" } else { "text/plain; charset=utf-8" };
    let headers = [
        ("Content-Type", kind),
        ("Cache-Control", "no-store"),
        ("Referrer-Policy", "no-referrer"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    ];
    let headers = headers.iter().filter_map(|(name, value)| Header::from_bytes(*name, *value).ok());
    headers.fold(answer, Response::with_header)
}
