//! `pipesim explore`: the explorer in a browser.

use super::schedules;
use crate::cli::Failure;
use crate::cli::explorer::{Engine, page};
use crate::cli::options::output::OneFile;
use crate::cli::terminal::progress::RemarkOptions;
use clap::Args;
use serde_json::Value;
use std::io::Read;
use std::path::PathBuf;

/// A program for the file is smaller.
const MOST_BYTES: u64 = 256 << 20;

/// Largest file of a job or a question, in bytes.
#[cfg(unix)]
const MOST_TEXT: u64 = 16 << 20;

const HELP: &str = "Without -o, serves the page to this machine alone until Ctrl-C, and runs what it asks for. With -o, writes one \
file that opens from disk and needs no server; tests/explorer/build makes the program that it contains.";

#[derive(Args)]
#[command(after_help = HELP)]
pub struct Explore {
    /// Port; 0 for any free one
    #[arg(long, default_value_t = 0, conflicts_with = "output")]
    port: u16,
    /// Only print the address; otherwise a terminal with a display opens it in a browser
    #[arg(long, conflicts_with = "output")]
    no_open: bool,
    /// Begin with a training job: a launch script, a configuration or a log
    #[arg(id = "begin_job", long = "job", value_name = "FILE", conflicts_with = "output")]
    job: Option<PathBuf>,
    /// Further file that the job reads; repeatable
    #[arg(
        id = "begin_job_file",
        long = "job-file",
        value_name = "FILE",
        requires = "begin_job",
        conflicts_with = "output"
    )]
    job_file: Vec<PathBuf>,
    /// Variable that the job was started with; repeatable
    #[arg(
        id = "begin_job_env",
        long = "job-env",
        value_name = "NAME=VALUE",
        requires = "begin_job",
        conflicts_with = "output"
    )]
    job_env: Vec<String>,
    /// Begin with a question that --save-question wrote
    #[arg(id = "begin_question", long = "question", value_name = "FILE.toml", conflicts_with_all = ["begin_job", "output"])]
    question: Option<PathBuf>,
    /// Begin with this hardware [default: h100-sxm, or the question's]
    #[arg(id = "begin_hardware", long = "hardware", value_name = "NAME", conflicts_with = "output")]
    hardware: Option<String>,
    /// Write one .html file instead of serving
    #[arg(long, short, value_name = "FILE.html", requires = "program")]
    output: Option<PathBuf>,
    /// The program for the file, built for wasm32-wasip1
    #[arg(long, value_name = "FILE.wasm", requires = "output")]
    program: Option<PathBuf>,
    #[command(flatten)]
    remarks: RemarkOptions,
}

impl Explore {
    /// Serves, or writes the file. `command` is the definition of the command line.
    pub fn run(&self, command: fn() -> clap::Command) -> Result<(), Failure> {
        let list = schedules::list()?;
        let Some(program) = &self.program else { return self.serve(&list, command) };
        let file = OneFile::at(self.output.as_deref(), &["html"])?;
        let name = program.display();
        let mut module = Vec::new();
        std::fs::File::open(program)
            .and_then(|file| file.take(MOST_BYTES).read_to_end(&mut module))
            .map_err(|error| Failure::Usage(format!("cannot read {name}: {error}; run tests/explorer/build")))?;
        if !module.starts_with(b"\0asm") || module.len() as u64 == MOST_BYTES {
            return Err(Failure::Usage(format!(
                "{name}: expected WebAssembly, found another file; run tests/explorer/build"
            )));
        }
        let page = page(&Engine::Inside(&module), &list, &Value::Null).map_err(anyhow::Error::from)?;
        file.write(page, self.remarks, |_| String::new())
    }

    #[cfg(unix)]
    fn serve(&self, list: &serde_json::Value, command: fn() -> clap::Command) -> Result<(), Failure> {
        use crate::cli::explorer::server::Explorer;
        let explorer = Explorer::bind(self.port, list, &self.start()?, command).map_err(|error| {
            Failure::Environment(format!("cannot serve on port {}: {error}; choose another --port", self.port))
        })?;
        let opened = !self.no_open && has_display() && open(&explorer.address_once());
        self.remarks.remark(match opened {
            true => "The explorer opens in a browser, at this address; Ctrl-C ends.",
            false => "Open this address in a browser on this machine; Ctrl-C ends.",
        });
        crate::cli::terminal::print(&format!("{}\n", explorer.address()))?;
        Ok(explorer.serve().map_err(anyhow::Error::from)?)
    }

    #[cfg(not(unix))]
    fn serve(&self, _: &serde_json::Value, _: fn() -> clap::Command) -> Result<(), Failure> {
        Err(Failure::Environment("cannot serve here; expected a system with sockets".to_string()))
    }
}

#[cfg(unix)]
impl Explore {
    /// Returns what the page begins with: fields of its form, and files that its commands read.
    fn start(&self) -> Result<Value, Failure> {
        use serde_json::{Map, json};
        let mut files = Map::new();
        let mut state = Map::new();
        let mut words = Vec::new();
        let given =
            self.job.iter().map(|path| ("--job", path)).chain(self.question.iter().map(|path| ("--question", path)));
        for (option, path) in given.chain(self.job_file.iter().map(|path| ("--job-file", path))) {
            let name = plain_name(path);
            files.insert(name.clone(), text(path)?.into());
            words.extend([option.to_string(), name]);
        }
        words.extend(
            self.job_env
                .iter()
                .flat_map(|pair| ["--job-env".to_string(), pipesim_schedule::sanitize::shell_quoted(pair)]),
        );
        if let Some(hardware) = &self.hardware {
            state.insert("mode".to_string(), "hardware".into());
            state.insert("hardware".to_string(), hardware.as_str().into());
        }
        if !words.is_empty() {
            // What it says is left to it.
            for field in ["s", "p", "m", "model", "tp", "dp", "mbs", "seq", "sp", "recompute"] {
                state.insert(field.to_string(), "".into());
            }
            if self.question.is_some() && self.hardware.is_none() {
                state.insert("hardware".to_string(), "".into());
            }
            state.insert("mode".to_string(), "job".into());
            state.insert("job".to_string(), words.join(" ").into());
        }
        Ok(json!({"files": files, "state": state}))
    }
}

/// Returns the name of a file without characters that the explorer's server refuses.
#[cfg(unix)]
fn plain_name(path: &std::path::Path) -> String {
    let name = path.file_name().map_or_else(|| "job".to_string(), |name| name.to_string_lossy().into_owned());
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._@+-".contains(c) { c } else { '_' };
    name.trim_start_matches('.').chars().map(plain).collect()
}

#[cfg(unix)]
fn text(path: &std::path::Path) -> Result<String, Failure> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MOST_TEXT).read_to_string(&mut text))
        .map_err(|error| Failure::Usage(format!("cannot read {}: {error}; give a text file", path.display())))?;
    Ok(text)
}

/// Whether somebody sits at a terminal that can show a browser: not where output goes to a pipe, nor over SSH without a display.
#[cfg(unix)]
fn has_display() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let can_show = match cfg!(target_os = "macos") {
        true => !is_set("SSH_CONNECTION"),
        false => is_set("DISPLAY") || is_set("WAYLAND_DISPLAY"),
    };
    std::io::IsTerminal::is_terminal(&std::io::stdout()) && can_show
}

/// Opens an address with the system's program for it; returns whether that program started.
#[cfg(unix)]
fn open(address: &str) -> bool {
    use std::process::{Command, Stdio};
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    // It may stay until the browser ends.
    std::thread::spawn(move || child.wait());
    true
}
